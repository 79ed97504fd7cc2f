// Attention that also returns the total weight of each key (kernels/attention/key_weights.h).
#pragma once

#include "tessera/ops/attention/attention.h"

namespace tessera::ops {

/// attention() of keys without gaps, patterns and terms; adds to weights_GS [kv heads, keys],
/// float32 with the keys of a head one after another, the sum over queries and over the query heads
/// of g of the weight that key j has had. The sums have no gradient. Where Form::kernel serves q
/// their bits, too, follow from the queries in their order and from the keys alone.
Tensor attention_with_weights(const Tensor& q_THD,
                              const std::vector<KeyValues>& kv,
                              int64_t start,
                              const ScoreOptions& options,
                              Tensor& weights_GS);

}  // namespace tessera::ops
