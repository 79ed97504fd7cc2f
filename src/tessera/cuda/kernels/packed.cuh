// Products with a matrix in blocks (packed_formats.cuh), from its packed bytes.
//
// PackedProduct: y = x W^T for few rows of x. A warp computes an output for all rows; each of its
// threads decodes 8 numbers of 256 and multiplies them with every row, so that the bytes of the
// matrix are read once. Sums are float32, in an order that does not depend on the number of rows.
//
// Unpack: rows of the matrix, decoded: what products of many rows read.
//
// Blocks lie as packed_block.cuh says.
#pragma once

#include "tessera/cuda/kernels/packed_formats.cuh"

namespace tessera::cuda {

struct alignas(16) FourFloats {
  float of[4];
};
TESSERA_DEVICE FourFloats four_at(const float* p) {
#ifdef __CUDACC__
  const float4 four = *reinterpret_cast<const float4*>(p);
  return {four.x, four.y, four.z, four.w};
#else
  return load<FourFloats>(p);
#endif
}

struct PackedProductArguments {
  const float* x = nullptr;     // [rows, width], at a multiple of 16 bytes
  const uint8_t* w = nullptr;   // [outputs, width] in blocks
  const float* bias = nullptr;  // [outputs], or null
  float* y = nullptr;           // [rows, outputs]
  int64_t width = 0;            // a multiple of a block
  int64_t outputs = 0;
  int32_t rows = 0;  // 1 to kRows of the kernel
};

template <class Format, int kMostRows>
struct PackedProduct {
  static constexpr int kThreads = 256, kOutputs = kThreads / 32, kRows = kMostRows;
  static constexpr int kRegisters = kRows == 1 ? 64 : 96;
  using Arguments = PackedProductArguments;
  struct Shared {
    float sums[kRows][kThreads];
  };

  /// Grid: blocks of kOutputs outputs.
  template <class Block>
  TESSERA_DEVICE static void run(Block& block, Shared& shared, const Arguments& in) {
    block.each([&](int thread) {
      const int lane = thread % 32;
      const int64_t output = block.x() * kOutputs + thread / 32;
      float sums[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) sums[r] = 0;
      const Places at = Format::places(lane);
      if (output < in.outputs) {
        const uint8_t* row = in.w + output * (in.width / Format::kElements * Format::kBytes);
        // loads of several stretches under way
#pragma unroll(kRows == 1 ? 4 : 2)
        for (int64_t first = 0; first + at.first < in.width; first += kStretch) {
          float w[8];
          Format::decode(row, first / kStretch, lane, w);
#pragma unroll
          for (int r = 0; r < kRows; ++r) {
            if (r >= in.rows) continue;
            const float* x = in.x + r * in.width + first;
            const FourFloats a = four_at(x + at.first), b = four_at(x + at.second);
#pragma unroll
            for (int n = 0; n < 4; ++n) sums[r] += w[n] * a.of[n];
#pragma unroll
            for (int n = 0; n < 4; ++n) sums[r] += w[4 + n] * b.of[n];
          }
        }
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) shared.sums[r][thread] = sums[r];
    });
    for (int half = 16; half > 0; half /= 2)
      block.each([&](int thread) {
        if (thread % 32 >= half) return;
#pragma unroll
        for (int r = 0; r < kRows; ++r) shared.sums[r][thread] += shared.sums[r][thread + half];
      });
    block.each([&](int thread) {
      const int r = thread % 32;
      const int64_t output = block.x() * kOutputs + thread / 32;
      if (r >= in.rows || output >= in.outputs) return;
      const float sum = shared.sums[r][thread - r];
      in.y[r * in.outputs + output] = in.bias != nullptr ? sum + in.bias[output] : sum;
    });
  }
};

template <class Format>
using PackedProductOfOne = PackedProduct<Format, 1>;
template <class Format>
using PackedProductOfFew = PackedProduct<Format, 8>;

/// A float32 as it is, or rounded to the nearest bf16.
TESSERA_DEVICE void store(float value, float* to) {
  *to = value;
}
TESSERA_DEVICE void store(float value, uint16_t* to) {
  const uint32_t bits = bits_of_float(value);
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  *to =
      static_cast<uint16_t>(nan ? bits >> 16 | 0x40u : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

template <class Number>
struct UnpackArguments {
  const uint8_t* w = nullptr;  // [.., width] in blocks
  Number* to = nullptr;        // [rows, width]
  int64_t width = 0;           // a multiple of a block
  int64_t rows = 0;
};

template <class Format, class Number>
struct Unpack {
  static constexpr int kThreads = 256, kStretches = kThreads / 32;
  static constexpr int kRegisters = 48;
  using Arguments = UnpackArguments<Number>;
  struct Shared {};

  /// Grid: blocks of kStretches stretches of 256 numbers, of all rows.
  template <class Block>
  TESSERA_DEVICE static void run(Block& block, Shared&, const Arguments& in) {
    block.each([&](int thread) {
      const int lane = thread % 32;
      const int64_t of_row = (in.width + kStretch - 1) / kStretch,
                    index = block.x() * kStretches + thread / 32, i = index / of_row,
                    first = index % of_row * kStretch;
      const Places at = Format::places(lane);
      if (i >= in.rows || first + at.first >= in.width) return;
      float w[8];
      Format::decode(in.w + i * (in.width / Format::kElements * Format::kBytes), first / kStretch,
                     lane, w);
      Number* to = in.to + i * in.width + first;
#pragma unroll
      for (int n = 0; n < 4; ++n) store(w[n], to + at.first + n);
#pragma unroll
      for (int n = 0; n < 4; ++n) store(w[4 + n], to + at.second + n);
    });
  }
};

template <class Format>
using UnpackFloat = Unpack<Format, float>;
template <class Format>
using UnpackBf16 = Unpack<Format, uint16_t>;

}  // namespace tessera::cuda
