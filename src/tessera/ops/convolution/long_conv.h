// A causal convolution over the whole past, continued from the past inputs.
#pragma once

#include <vector>

#include "tessera/ops/tensor.h"

namespace tessera::ops {

/// y_t = sum_{s <= t} k_{t-s} z_s for the last `tokens` of all inputs, [tokens, H] in z's wide
/// type. The inputs lie in parts [S_i, H] that follow one another; k [L, H] reaches over all of
/// them. Memory is linear in the inputs. Where Form::kernel serves z: the batch-invariant kernel,
/// quadratic in the tokens of a call. Else differentiable: direct sums for a few tokens, transforms
/// of all inputs for more.
Tensor long_conv(const std::vector<Tensor>& z_SH, const Tensor& k_LH, int64_t tokens);

}  // namespace tessera::ops
