// The short causal convolution of whole documents, with its activation and gradients.
#pragma once

#include "tessera/kernels/activation.h"
#include "tessera/ops/documents.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops {

/// y[t, c] = act(b[c] + sum_j w[c, j] x[t - (K - 1) + j, c]); inputs before a document's first
/// token are zero. b_C may be undefined. Differentiable.
Tensor short_conv(const Tensor& x_TC,
                  const Tensor& w_CK,
                  const Tensor& b_C,
                  kernels::Activation act,
                  const Lengths& lengths);

}  // namespace tessera::ops
