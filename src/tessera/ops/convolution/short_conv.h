// The short causal convolution: of whole documents, with its activation and gradients, and of one
// sequence from a state.
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

/// y[t, c] = b[c] + sum_j w[c, j] x[t - (K - 1) + j, c]; tail_BKC holds the K - 1 inputs before x
/// (undefined = zeros).
Tensor causal_conv(const Tensor& x_BTC,
                   const Tensor& w_CK,
                   const Tensor& b_C,
                   const Tensor& tail_BKC = {});

/// The kernel for one sequence, with its activation; tail_KC is updated in place.
Tensor causal_conv_kernel(const Tensor& x_TC,
                          const Tensor& w_CK,
                          const Tensor& b_C,
                          Tensor& tail_KC,
                          kernels::Activation act);

}  // namespace tessera::ops
