// A matrix of its own for every head: block-diagonal products.
#pragma once

#include "tessera/ops/weights/weight.h"

namespace tessera::ops {

/// y[n, h] = W_h x[n, h] + b_h: x_NHI and w [H * O, I], the rows of head h together, bias [H * O]
/// or null -> [N, H, O]. The batch-invariant product where kernels compute, in the weight's storage
/// type; else with gradients. `settings` are of an adapter's product.
Tensor head_linear(const Tensor& x_NHI,
                   const Weight& w,
                   const Weight* bias = nullptr,
                   const ProductSettings& settings = {});

}  // namespace tessera::ops
