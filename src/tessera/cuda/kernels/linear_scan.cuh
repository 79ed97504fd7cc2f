// First-order linear recurrences, one a channel, in chunks of tokens:
//   h_t = a_t h_{t-1} + b_t
// LinearScanChunks: what each chunk makes of zeros; then ScanCarry: the state before each chunk;
// then LinearScanOutput. The adjoint, with g_t = dh_t + u_{t+1} and u_t = a_t g_t, from the last
// token to the first:
//   db_t = g_t,   da_t = g_t h_{t-1}
// in the same three steps. Chunks do not reach over documents.
#pragma once

#include "tessera/cuda/block.h"

namespace tessera::cuda {

struct LinearScanChunks {
  static constexpr int kThreads = 128;
  static constexpr int kRegisters = 40;
  struct Arguments {
    const float* a = nullptr;         // [T, width]
    const float* b = nullptr;         // [T, width]
    const int64_t* starts = nullptr;  // [chunks + 1]: the first token of each chunk, and T
    float* product = nullptr;         // [chunks, width]
    float* carried = nullptr;         // [chunks, width]
    int64_t width = 0;
  };
  struct Shared {};

  /// Grid: chunks, blocks of kThreads channels.
  template <class Block>
  TESSERA_DEVICE static void run(Block& block, Shared&, const Arguments& in) {
    block.each([&](int thread) {
      const int64_t chunk = block.x(), channel = block.y() * kThreads + thread;
      if (channel >= in.width) return;
      const int64_t end = in.starts[chunk + 1];
      float product = 1, h = 0;
#pragma unroll 4
      for (int64_t t = in.starts[chunk]; t < end; ++t) {
        const float a = in.a[t * in.width + channel];
        h = a * h + in.b[t * in.width + channel];
        product *= a;
      }
      in.product[chunk * in.width + channel] = product;
      in.carried[chunk * in.width + channel] = h;
    });
  }
};

struct LinearScanOutput {
  static constexpr int kThreads = 128;
  static constexpr int kRegisters = 40;
  struct Arguments {
    const float* a = nullptr;         // [T, width]
    const float* b = nullptr;         // [T, width]
    const int64_t* starts = nullptr;  // [chunks + 1]
    const float* before = nullptr;    // [chunks, width]: the state before each chunk
    float* h = nullptr;               // [T, width]
    int64_t width = 0;
  };
  struct Shared {};

  /// Grid: chunks, blocks of kThreads channels.
  template <class Block>
  TESSERA_DEVICE static void run(Block& block, Shared&, const Arguments& in) {
    block.each([&](int thread) {
      const int64_t chunk = block.x(), channel = block.y() * kThreads + thread;
      if (channel >= in.width) return;
      const int64_t end = in.starts[chunk + 1];
      float h = in.before[chunk * in.width + channel];
#pragma unroll 4
      for (int64_t t = in.starts[chunk]; t < end; ++t) {
        h = in.a[t * in.width + channel] * h + in.b[t * in.width + channel];
        in.h[t * in.width + channel] = h;
      }
    });
  }
};

struct LinearScanAdjointChunks {
  static constexpr int kThreads = 128;
  static constexpr int kRegisters = 40;
  struct Arguments {
    const float* a = nullptr;         // [T, width]
    const float* dh = nullptr;        // [T, width]
    const int64_t* starts = nullptr;  // [chunks + 1]
    float* product = nullptr;         // [chunks, width]
    float* carried = nullptr;         // [chunks, width]: u of the chunk's first token
    int64_t width = 0;
  };
  struct Shared {};

  /// Grid: chunks, blocks of kThreads channels.
  template <class Block>
  TESSERA_DEVICE static void run(Block& block, Shared&, const Arguments& in) {
    block.each([&](int thread) {
      const int64_t chunk = block.x(), channel = block.y() * kThreads + thread;
      if (channel >= in.width) return;
      const int64_t begin = in.starts[chunk];
      float product = 1, u = 0;
#pragma unroll 4
      for (int64_t t = in.starts[chunk + 1] - 1; t >= begin; --t) {
        const float a = in.a[t * in.width + channel];
        u = a * (in.dh[t * in.width + channel] + u);
        product *= a;
      }
      in.product[chunk * in.width + channel] = product;
      in.carried[chunk * in.width + channel] = u;
    });
  }
};

struct LinearScanAdjoint {
  static constexpr int kThreads = 128;
  static constexpr int kRegisters = 48;
  struct Arguments {
    const float* a = nullptr;         // [T, width]
    const float* h = nullptr;         // [T, width]
    const float* dh = nullptr;        // [T, width]
    const int64_t* starts = nullptr;  // [chunks + 1]
    const float* before = nullptr;    // [chunks, width]: the state before each chunk
    const float* after = nullptr;     // [chunks, width]: u after each chunk
    float* da = nullptr;              // [T, width]
    float* db = nullptr;              // [T, width]
    int64_t width = 0;
  };
  struct Shared {};

  /// Grid: chunks, blocks of kThreads channels.
  template <class Block>
  TESSERA_DEVICE static void run(Block& block, Shared&, const Arguments& in) {
    block.each([&](int thread) {
      const int64_t chunk = block.x(), channel = block.y() * kThreads + thread;
      if (channel >= in.width) return;
      const int64_t begin = in.starts[chunk];
      float u = in.after[chunk * in.width + channel];
      for (int64_t t = in.starts[chunk + 1] - 1; t >= begin; --t) {
        const float g = in.dh[t * in.width + channel] + u;
        const float previous =
            t > begin ? in.h[(t - 1) * in.width + channel] : in.before[chunk * in.width + channel];
        u = in.a[t * in.width + channel] * g;
        in.db[t * in.width + channel] = g;
        in.da[t * in.width + channel] = g * previous;
      }
    });
  }
};

}  // namespace tessera::cuda
