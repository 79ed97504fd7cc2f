// First-order linear recurrences, one a channel: h_t = a_t h_{t-1} + b_t, by kernels with
// gradients where they apply, else by linear_scan.h.
#pragma once

#include <utility>

#include "tessera/ops/documents.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops {

/// Whole documents from zeros: a and b [T, W] of one dtype, float32 or double -> h. Differentiable:
/// on a CPU in float32 by kernels, elsewhere in chunks of `chunk` tokens.
Tensor channel_scan(const Tensor& a_TW, const Tensor& b_TW, const Lengths& lengths, int64_t chunk);

/// One document's tokens from state_W on: h and the last one. Differentiable, as channel_scan is.
std::pair<Tensor, Tensor> channel_scan_from(const Tensor& a_TW,
                                            const Tensor& b_TW,
                                            int64_t chunk,
                                            const Tensor& state_W);

/// The batch-invariant kernel in float32, without gradients; state_W is updated in place.
Tensor channel_scan_kernel(const Tensor& a_TW, const Tensor& b_TW, Tensor& state_W);

}  // namespace tessera::ops
