// Rotations of rows in memory, for decoding's steps (nn/decode_step.h).
#pragma once

#include "tessera/kernels/basic/rope.h"
#include "tessera/nn/parts.h"
#include "tessera/ops/basic/rope.h"

namespace tessera::nn {

/// x [n, heads, width] of the tokens first .. first + n - 1 of a call, on this thread.
inline void turn(
    const Rotation& by, int64_t first, int64_t n, int64_t heads, int64_t width, float* x) {
  if (by.table == nullptr) return;
  const int64_t pairs = by.table->cos_NR.size(1);
  kernels::rope(x,
                {.tokens = n,
                 .heads = heads,
                 .head_stride = width,
                 .token_stride = heads * width,
                 .rotary_dim = 2 * pairs,
                 .interleaved = by.interleaved},
                by.table->cos_NR.const_data_ptr<float>() + first * pairs,
                by.table->sin_NR.const_data_ptr<float>() + first * pairs);
}

}  // namespace tessera::nn
