// RMS norm of rows of d numbers:
//   y = x r (w + offset),   r = 1 / sqrt(mean x^2 + eps)
// and, with g = dy (w + offset),
//   dx = r g - x r^3 / d sum(g x),   dw = sum over rows of dy x r
// A row is computed by kLanes threads: a warp for short ones, a block for long ones.
#pragma once

#include "tessera/cuda/kernels/lanes.cuh"

namespace tessera::cuda {

struct RmsNormArguments {
  const float* x = nullptr;  // [rows, d]
  const float* w = nullptr;  // [d], or null: ones
  float* y = nullptr;        // [rows, d]
  float* r = nullptr;        // [rows], or null
  int64_t rows = 0, d = 0;
  float offset = 0;  // on w
  float eps = 0;
};

template <int kLanes>
struct RmsNorm {
  static constexpr int kThreads = 256, kRows = kThreads / kLanes;
  static constexpr int kRegisters = 40;
  using Arguments = RmsNormArguments;
  struct Shared {
    float sums[kThreads];
  };

  /// Grid: blocks of kRows rows.
  template <class Block>
  TESSERA_DEVICE static void run(Block& block, Shared& shared, const Arguments& in) {
    block.each([&](int thread) {
      const int64_t row = block.x() * kRows + thread / kLanes;
      float sum = 0;
      if (row < in.rows)
        for (int64_t i = thread % kLanes; i < in.d; i += kLanes) {
          const float x = in.x[row * in.d + i];
          sum += x * x;
        }
      shared.sums[thread] = sum;
    });
    sum_lanes<kLanes>(block, shared.sums);
    block.each([&](int thread) {
      const int64_t row = block.x() * kRows + thread / kLanes;
      if (row >= in.rows) return;
      const float squares = shared.sums[thread / kLanes * kLanes];
      const float r = 1 / sqrt(squares / static_cast<float>(in.d) + in.eps);
      for (int64_t i = thread % kLanes; i < in.d; i += kLanes) {
        const float factor = in.w != nullptr ? in.w[i] + in.offset : 1;
        in.y[row * in.d + i] = in.x[row * in.d + i] * r * factor;
      }
      if (in.r != nullptr && thread % kLanes == 0) in.r[row] = r;
    });
  }
};

struct RmsNormInputGradientArguments {
  const float* x = nullptr;   // [rows, d]
  const float* w = nullptr;   // [d], or null: ones
  const float* r = nullptr;   // [rows]
  const float* dy = nullptr;  // [rows, d]
  float* dx = nullptr;        // [rows, d]
  int64_t rows = 0, d = 0;
  float offset = 0;
};

template <int kLanes>
struct RmsNormInputGradient {
  static constexpr int kThreads = 256, kRows = kThreads / kLanes;
  static constexpr int kRegisters = 40;
  using Arguments = RmsNormInputGradientArguments;
  struct Shared {
    float sums[kThreads];
  };

  /// Grid: blocks of kRows rows.
  template <class Block>
  TESSERA_DEVICE static void run(Block& block, Shared& shared, const Arguments& in) {
    const auto g = [&](int64_t row, int64_t i) {
      return in.dy[row * in.d + i] * (in.w != nullptr ? in.w[i] + in.offset : 1);
    };
    block.each([&](int thread) {
      const int64_t row = block.x() * kRows + thread / kLanes;
      float sum = 0;
      if (row < in.rows)
        for (int64_t i = thread % kLanes; i < in.d; i += kLanes)
          sum += g(row, i) * in.x[row * in.d + i];
      shared.sums[thread] = sum;
    });
    sum_lanes<kLanes>(block, shared.sums);
    block.each([&](int thread) {
      const int64_t row = block.x() * kRows + thread / kLanes;
      if (row >= in.rows) return;
      const float r = in.r[row];
      const float along =
          shared.sums[thread / kLanes * kLanes] * r * r * r / static_cast<float>(in.d);
      for (int64_t i = thread % kLanes; i < in.d; i += kLanes)
        in.dx[row * in.d + i] = r * g(row, i) - along * in.x[row * in.d + i];
    });
  }
};

/// The sums over kRows rows each of dy x r, a thread a column.
struct RmsNormWeightGradient {
  static constexpr int kThreads = 128, kRows = 64;
  static constexpr int kRegisters = 40;
  struct Arguments {
    const float* x = nullptr;   // [rows, d]
    const float* r = nullptr;   // [rows]
    const float* dy = nullptr;  // [rows, d]
    float* dw = nullptr;        // [blocks of kRows rows, d]
    int64_t rows = 0, d = 0;
  };
  struct Shared {};

  /// Grid: blocks of kRows rows, blocks of kThreads columns.
  template <class Block>
  TESSERA_DEVICE static void run(Block& block, Shared&, const Arguments& in) {
    block.each([&](int thread) {
      const int64_t column = block.y() * kThreads + thread, begin = block.x() * kRows;
      if (column >= in.d) return;
      const int64_t end = smaller(in.rows, begin + kRows);
      float sum = 0;
#pragma unroll 4
      for (int64_t row = begin; row < end; ++row)
        sum += in.dy[row * in.d + column] * in.x[row * in.d + column] * in.r[row];
      in.dw[block.x() * in.d + column] = sum;
    });
  }
};

}  // namespace tessera::cuda
