// States between the chunks of a scan that runs in chunks of tokens: with what each chunk makes of
// a state of zeros (`carried`) and what it multiplies a state by (`product`),
//   before_c = after_{c-1};  after_c = product_c before_c + carried_c
// one state a lane. Documents are independent. The same from the last chunk to the first is the
// adjoint.
#pragma once

#include "tessera/cuda/block.h"

namespace tessera::cuda {

struct ScanCarry {
  static constexpr int kThreads = 128;
  static constexpr int kRegisters = 64;
  struct Arguments {
    const float* product = nullptr;   // [chunks, width]
    float* carried = nullptr;         // [chunks, width]; replaced by the state before each chunk
    const int64_t* chunks = nullptr;  // [documents + 1]: the first chunk of each document
    const float* first = nullptr;  // [documents, width]: states before the documents; null = zeros
    float* last = nullptr;         // [documents, width]: states after them, or null
    int64_t width = 0;
    bool reverse = false;
  };
  struct Shared {};

  /// Grid: documents, blocks of kThreads lanes.
  template <class Block>
  TESSERA_DEVICE static void run(Block& block, Shared&, const Arguments& in) {
    block.each([&](int thread) {
      constexpr int kAhead = 8;  // chunks whose loads do not wait for each other
      const int64_t document = block.x(), lane = block.y() * kThreads + thread;
      if (lane >= in.width) return;
      const int64_t begin = in.chunks[document], end = in.chunks[document + 1];
      float state = in.first != nullptr ? in.first[document * in.width + lane] : 0.0f;
      for (int64_t base = begin; base < end; base += kAhead) {
        float product[kAhead], carried[kAhead];
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          if (base + i >= end) continue;
          const int64_t chunk = in.reverse ? end - 1 - (base - begin) - i : base + i;
          product[i] = in.product[chunk * in.width + lane];
          carried[i] = in.carried[chunk * in.width + lane];
        }
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          if (base + i >= end) continue;
          const int64_t chunk = in.reverse ? end - 1 - (base - begin) - i : base + i;
          in.carried[chunk * in.width + lane] = state;
          state = product[i] * state + carried[i];
        }
      }
      if (in.last != nullptr) in.last[document * in.width + lane] = state;
    });
  }
};

}  // namespace tessera::cuda
