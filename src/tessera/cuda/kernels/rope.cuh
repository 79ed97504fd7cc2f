// Rotary position embedding: the first 2 R channels of every head of a token, in pairs (m, m + R)
// or (2 m, 2 m + 1), turned by an angle of the token:
//   a' = a cos - b sin,   b' = a sin + b cos
// The gradient turns back: the same with -sin.
#pragma once

#include "tessera/cuda/block.h"

namespace tessera::cuda {

struct Rope {
  static constexpr int kThreads = 256;
  static constexpr int kRegisters = 40;
  struct Arguments {
    const float* x = nullptr;    // [tokens, heads, d]
    const float* cos = nullptr;  // [tokens, pairs]
    const float* sin = nullptr;  // [tokens, pairs]
    float* y = nullptr;          // [tokens, heads, d]
    int64_t tokens = 0, heads = 0, d = 0, pairs = 0;
    bool interleaved = false;
    bool back = false;
  };
  struct Shared {};

  /// Threads of a head: its pairs, and the channels that do not turn.
  static constexpr int64_t work(int64_t heads, int64_t d, int64_t pairs) {
    return heads * (d - pairs);
  }

  /// Grid: blocks of kThreads of tokens * work() threads.
  template <class Block>
  TESSERA_DEVICE static void run(Block& block, Shared&, const Arguments& in) {
    block.each([&](int thread) {
      const int64_t of_head = in.d - in.pairs, index = block.x() * kThreads + thread,
                    head = index / of_head, i = index % of_head, token = head / in.heads;
      if (token >= in.tokens) return;
      const float* x = in.x + head * in.d;
      float* y = in.y + head * in.d;
      if (i >= in.pairs) {
        y[in.pairs + i] = x[in.pairs + i];
        return;
      }
      const int64_t first = in.interleaved ? 2 * i : i,
                    second = in.interleaved ? first + 1 : i + in.pairs;
      const float c = in.cos[token * in.pairs + i], turn = in.sin[token * in.pairs + i],
                  s = in.back ? -turn : turn, a = x[first], b = x[second];
      y[first] = a * c - b * s;
      y[second] = a * s + b * c;
    });
  }
};

}  // namespace tessera::cuda
