// Attention weight that each key has from the queries of a call, summed: the measure of heavy
// hitters (nn/mixer/attention/heavy_keys.h).
//   w_gj <- w_gj + sum_i sum_(h of g) p_ihj
// A second pass over the keys, with the softmax that attend() has left: nothing of the size of
// queries times keys is held. Queries are added one after another, and the heads of one in their
// order, so that a sum has the same bits however the queries are cut into calls, and whatever the
// threads.
#pragma once

#include "tessera/kernels/attention/attention.h"

namespace tessera::kernels {

/// After attend() of the same: adds to weights[g * stride + j], j the key's position minus
/// kv.begin(). Throws Error(internal) where a.softmax is not set, or a has a pattern, a bias, or
/// far queries.
void add_key_weights(const Attention& a, float* weights, int64_t stride);

}  // namespace tessera::kernels
