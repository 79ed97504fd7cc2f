// Softmax attention of one sequence over its key-value cache, float32.
//   s_j = softcap(scale q.k_j) + bias_j over the visible keys;   o = softmax(s) v
//
// Goals: a query's bits depend on that query and on the keys that it sees, not on how many queries
// the call holds, how a prompt was split into calls, where a ring cache stores a key, or the
// threads. Hence one fixed order: keys are taken in blocks of 256 absolute positions, each block
// gives its maximum, sum and weighted values (keys in ascending order), and the blocks are merged
// in ascending order. A query that sees no key gives 0. Memory per thread is independent of the
// number of keys.
#pragma once

#include <cstdint>

#include "tessera/kernels/visibility.h"

namespace tessera::kernels {

/// Keys and values in a linear or ring cache: the key of absolute position first_position + j,
/// 0 <= j < count, lies in slot lead + (first_slot + j) % capacity. Before them, the keys of
/// positions 0 .. lead - 1 lie in slots 0 .. lead - 1; lead <= first_position.
struct KeyValueView {
  const float* k = nullptr;  // k[slot * k_token_stride + g * k_head_stride + c], c < K
  const float* v = nullptr;  // v[slot * v_token_stride + g * v_head_stride + c], c < V
  int64_t k_token_stride = 0, k_head_stride = 0;
  int64_t v_token_stride = 0, v_head_stride = 0;
  int64_t first_position = 0;
  int64_t count = 0;
  int64_t first_slot = 0;
  int64_t capacity = 0;  // 0: as many as count, no ring
  int64_t lead = 0;
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
  KeyValueView kv;

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
                                // the key's number in kv; not with a lead
  int64_t bias_head_stride = 0, bias_query_stride = 0;
  const float* sinks = nullptr;  // [H]: a logit that joins each head's denominator; -inf: none
};

/// Throws Error(internal) when G does not divide H or a size or position is negative.
void attend(const Attention& attention);

}  // namespace tessera::kernels
