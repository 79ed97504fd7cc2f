// SwiGLU: y = g s u with s = sigmoid(g);   du = dy g s,   dg = dy u s (1 + g (1 - s)).
#pragma once

#include "tessera/cuda/block.h"

namespace tessera::cuda {

struct SwiGlu {
  static constexpr int kThreads = 256, kEach = 4;  // numbers of a thread
  static constexpr int kRegisters = 32;
  struct Arguments {
    const float* g = nullptr;  // [n]
    const float* u = nullptr;  // [n]
    float* y = nullptr;        // [n]
    int64_t n = 0;
  };
  struct Shared {};

  /// Grid: blocks of kEach * kThreads numbers.
  template <class Block>
  TESSERA_DEVICE static void run(Block& block, Shared&, const Arguments& in) {
    block.each([&](int thread) {
#pragma unroll
      for (int part = 0; part < kEach; ++part) {
        const int64_t i = (block.x() * kEach + part) * kThreads + thread;
        if (i >= in.n) continue;
        const float g = in.g[i];
        in.y[i] = g * sigmoid(g) * in.u[i];
      }
    });
  }
};

struct SwiGluGradient {
  static constexpr int kThreads = 256, kEach = 4;
  static constexpr int kRegisters = 40;
  struct Arguments {
    const float* g = nullptr;   // [n]
    const float* u = nullptr;   // [n]
    const float* dy = nullptr;  // [n]
    float* dg = nullptr;        // [n]
    float* du = nullptr;        // [n]
    int64_t n = 0;
  };
  struct Shared {};

  /// Grid: blocks of kEach * kThreads numbers.
  template <class Block>
  TESSERA_DEVICE static void run(Block& block, Shared&, const Arguments& in) {
    block.each([&](int thread) {
#pragma unroll
      for (int part = 0; part < kEach; ++part) {
        const int64_t i = (block.x() * kEach + part) * kThreads + thread;
        if (i >= in.n) continue;
        const float g = in.g[i], s = sigmoid(g), dy = in.dy[i];
        in.du[i] = dy * g * s;
        in.dg[i] = dy * in.u[i] * s * (1 + g * (1 - s));
      }
    });
  }
};

}  // namespace tessera::cuda
