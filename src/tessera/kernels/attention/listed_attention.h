// Softmax attention of queries to keys that a list names: what content, levels or blocks select.
//   s_j = scale q . k_j + bias_j over the list;   o = softmax(s) v
//
// A query's bits depend on that query and its list alone: keys are taken in the list's order. An
// empty list gives 0. float32; the last axes are dense.
#pragma once

#include <cstdint>

namespace tessera::kernels {

/// Keys and values of one memory; key j of head g lies at k + j * k_token_stride + g *
/// k_head_stride.
struct KeySource {
  const float* k = nullptr;
  const float* v = nullptr;
  int64_t k_token_stride = 0, k_head_stride = 0;
  int64_t v_token_stride = 0, v_head_stride = 0;
};

/// One entry of a list.
struct ListedKey {
  int32_t source = 0, index = 0;
  double bias = 0;
};

struct ListedAttention {
  int64_t T = 0, H = 0, G = 0, K = 0, V = 0;  // head h reads key-value head h / (H / G)
  const float* q = nullptr;                   // [T, H, K]
  const KeySource* sources = nullptr;
  const ListedKey* keys = nullptr;  // all lists, one after another
  const int64_t* ends = nullptr;    // [T * L]: where each list ends; the first begins at 0
  int64_t L = 1;                    // lists of a query: 1 for all heads, G or H
  float scale = 1;
  float* out = nullptr;  // [T, H, V]
  float* lse = nullptr;  // [T, H] or null: ln of the sum of exp(s); -inf for an empty list
};
/// Throws Error(internal) unless G divides H and L is 1, G or H.
void listed_attention(const ListedAttention& attention);

/// From the gradient of `out` to those of q, keys and values. Those of the keys and values are
/// added to. One thread works on a kv head, so that the sums have one order.
struct ListedAttentionGradient {
  ListedAttention of;           // out and lse as computed
  const float* dout = nullptr;  // [T, H, V]
  float* dq = nullptr;          // [T, H, K]
  float* const* dk = nullptr;   // of every source, dense [S, G, K]
  float* const* dv = nullptr;   // of every source, dense [S, G, V]
  float* dbias = nullptr;       // of every entry, or null; L == H
};
/// Throws Error(internal) unless G divides H and L is 1, G or H; with dbias, H.
void listed_attention_backward(const ListedAttentionGradient& gradient);

}  // namespace tessera::kernels
