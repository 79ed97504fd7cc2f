// Sums over the threads of a row, where a block computes one row or several.
#pragma once

#include "tessera/cuda/block.h"

namespace tessera::cuda {

/// sums[first of each kLanes threads] = the sum of theirs, by halves; kLanes is a power of two.
template <int kLanes, class Block>
TESSERA_DEVICE void sum_lanes(Block& block, float* sums) {
  for (int half = kLanes / 2; half > 0; half /= 2)
    block.each([&](int thread) {
      if (thread % kLanes < half) sums[thread] += sums[thread + half];
    });
}

}  // namespace tessera::cuda
