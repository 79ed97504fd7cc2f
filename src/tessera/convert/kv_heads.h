// Attention with fewer key/value heads: multi-head to grouped-query or multi-query.
//
// Of H key/value heads G remain; head g of the result comes from the heads g n .. g n + n - 1,
// n = H / G, which are those that its query heads read before. Queries and outputs stay. Exact
// where the heads of a group are equal; else a start for further training (Ainslie et al. 2023,
// arXiv:2305.13245, sec. 2.1, who train for 5 % of the original steps).
#pragma once

#include "tessera/convert/checkpoint.h"

namespace tessera::convert {

enum class PoolHeads {
  mean,    // of the group; the best of the three
  first,   // the group's first head
  random,  // drawn as for training from scratch
};

struct KvHeadsOptions {
  int64_t kv_heads = 1;
  PoolHeads pool = PoolHeads::mean;
  uint64_t seed = 0;  // of PoolHeads::random
};

/// Blocks of rows, `heads` of them, to `groups`, by mean or first: weights [heads * D, C], biases
/// and norm weights [heads * D]. Means are summed in double and stored as the tensor's type (block
/// types: float32). groups == heads: the tensor itself.
TensorView pooled_heads(const TensorView& tensor, int64_t heads, int64_t groups, PoolHeads pool);

/// The checkpoint with options.kv_heads key/value heads in every mixer of type attention and
/// cross_attention; tensors that need no change are those of the argument. Norms of keys that have
/// weights per head are pooled like the keys, which is not exact. Throws Error(usage) when no mixer
/// has key/value heads, when one of another type has, or when the number does not divide the
/// present one.
Checkpoint with_kv_heads(Checkpoint checkpoint, const KvHeadsOptions& options);

}  // namespace tessera::convert
