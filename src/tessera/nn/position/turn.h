// Rotations of rows in memory, for decoding's steps (nn/decode_step.h).
#pragma once

#include "tessera/kernels/basic/rope.h"
#include "tessera/nn/parts.h"
#include "tessera/ops/basic/rope.h"

namespace tessera::nn {

/// Heads of tokens: the j-th channel of head h of token t is x[t * token_stride + h * head_stride +
/// j].
struct HeadRows {
  float* x;
  int64_t heads, head_stride, token_stride;
};

/// Those of the tokens first .. first + n - 1 of a call, on this thread.
inline void turn(const Rotation& by, int64_t first, int64_t n, const HeadRows& rows) {
  if (by.table == nullptr) return;
  const int64_t pairs = by.table->cos_NR.size(1);
  kernels::rope(rows.x,
                {.tokens = n,
                 .heads = rows.heads,
                 .head_stride = rows.head_stride,
                 .token_stride = rows.token_stride,
                 .rotary_dim = 2 * pairs,
                 .interleaved = by.interleaved},
                by.table->cos_NR.const_data_ptr<float>() + first * pairs,
                by.table->sin_NR.const_data_ptr<float>() + first * pairs);
}

/// The same of x [n, heads, width].
inline void turn(
    const Rotation& by, int64_t first, int64_t n, int64_t heads, int64_t width, float* x) {
  turn(by, first, n, {x, heads, width, heads * width});
}

}  // namespace tessera::nn
