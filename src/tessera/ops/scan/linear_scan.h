// First-order linear recurrences h_t = a_t h_{t-1} + b_t, element by element: the plain form under
// the selective scan and the RG-LRU.
#pragma once

#include <utility>

#include "tessera/ops/tensor.h"

namespace tessera::ops {

/// a and b [B, T, ...] of one shape, start [B, ...] or undefined (zeros) -> h [B, T, ...] and the
/// last h. Inside a chunk prefixes are doubled (log2(chunk) steps over the whole tensor), so that
/// nothing is divided by a product of decays; across chunks the recurrence runs. Computes in the
/// type of b.
std::pair<Tensor, Tensor> linear_scan(const Tensor& a,
                                      const Tensor& b,
                                      int64_t chunk,
                                      const Tensor& start = {});

}  // namespace tessera::ops
