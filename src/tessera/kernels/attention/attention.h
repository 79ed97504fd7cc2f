// Softmax attention of one sequence over its key-value cache.
//   s_j = softcap(scale q.k_j) + bias_j over the visible keys;   o = softmax(s) v
//
// Goals: a query's bits depend on that query and on the keys that it sees, not on how many queries
// the call holds, how a prompt was split into calls, in which spans (pages) a cache keeps its keys,
// or the threads. Hence one fixed order: keys are taken in blocks of 256 absolute positions, each
// block gives its maximum, sum and weighted values (keys in ascending order), and the blocks are
// merged in ascending order. With few queries the threads share out the blocks. A query that sees
// no key gives 0. Memory per thread is independent of the number of keys. Under a scattered pattern
// a query goes through the list of its keys instead (scattered_attention.h).
//
// Keys and values are read where they lie; with many queries a panel of neighbouring ones takes
// each block together, and its keys are turned for them, so that lanes are keys. Those of fewer
// bits (kv_rows.h) become floats a few keys at a time; a packed key's scale multiplies its logit, a
// packed value's its weight.
#pragma once

#include <cstdint>

#include "tessera/base/dtype.h"
#include "tessera/base/team.h"
#include "tessera/kernels/attention/visibility.h"

namespace tessera::kernels {

/// Keys and values of positions first .. first + count - 1. The one of head g of the j-th lies
/// j * k_token_stride + g * k_head_stride bytes after k, a row of K numbers of `type`; values
/// likewise, rows of V numbers. Memory after the last row may hold anything.
struct KeySpan {
  const void* k = nullptr;
  const void* v = nullptr;
  int64_t k_token_stride = 0, k_head_stride = 0;  // bytes
  int64_t v_token_stride = 0, v_head_stride = 0;
  int64_t first = 0, count = 0;
  DType type = DType::f32;  // f32, f16, bf16, i8 or u8
};

/// Spans that are not empty, disjoint and in ascending order of position.
struct KeyValueView {
  const KeySpan* spans = nullptr;
  int64_t size = 0;
  int64_t begin() const { return size == 0 ? 0 : spans[0].first; }
  int64_t end() const { return size == 0 ? 0 : spans[size - 1].first + spans[size - 1].count; }
};

struct Attention {
  int64_t T = 0;         // queries, of absolute positions first_position + i
  int64_t H = 0, G = 0;  // query heads and key-value heads; head h reads key-value head h / (H / G)
  int64_t K = 0, V = 0;  // dimension of a key head and of a value head

  const float* q = nullptr;  // q[i * q_token_stride + h * q_head_stride + c]
  int64_t q_token_stride = 0, q_head_stride = 0;
  float* out = nullptr;  // out[i * out_token_stride + h * out_head_stride + c], c < V; not q
  int64_t out_token_stride = 0, out_head_stride = 0;
  int64_t first_position = 0;
  KeyValueView kv;  // gaps between spans only where `visible` hides them

  bool causal = true;  // key j is visible to position p when j <= p
  int64_t window = 0;  // when positive, p - window < j as well, and j < p + window when not causal

  /// When set it replaces causal and window, whole blocks that it hides cost nothing, and the sums
  /// of a block begin at the block, whatever the first key in kv is.
  const Visibility* visible = nullptr;
  /// Keys of positions below far_end meet these queries, of the same strides, instead of q.
  const float* far_q = nullptr;
  int64_t far_end = 0;

  float scale = 1;
  float softcap = 0;            // c tanh(s / c); 0: none
  const float* bias = nullptr;  // added: bias[h * bias_head_stride + i * bias_query_stride + j], j
                                // the key's position minus kv.begin(); not with gaps
  int64_t bias_head_stride = 0, bias_query_stride = 0;
  const float* sinks = nullptr;  // [H]: a logit that joins each head's denominator; -inf: none

  /// When set, [T, H, 2], dense: each query's largest logit m and sum of exp(logit - m), sinks
  /// among them, are written here; what key_weights.h reads.
  float* softmax = nullptr;
};

/// Throws Error(internal) when G does not divide H, a size or position is negative, or spans
/// overlap or leave a gap that nothing hides.
void attend(const Attention& attention);

/// The same of several sequences of few queries each, without biases, far queries and patterns
/// other than scattered ones, by a team: every thread calls this with the same calls. They share
/// out heads and blocks of keys, and wait for each other in between, not at the end. `memory`:
/// team_floats() floats, aligned to a cache line, that all of them see.
void attend(Team& team, const Attention* calls, int64_t count, float* memory);
/// Enough for calls of these T, H and V whose keys have positions below `keys`.
int64_t team_floats(const Attention* calls, int64_t count, int64_t keys);

}  // namespace tessera::kernels
