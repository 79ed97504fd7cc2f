// Block-diagonal products: each block of channels meets its own small matrix.
#pragma once

#include "tessera/ops/weight.h"

namespace tessera::ops {

/// y[n, h, o] = sum_i w[h O/H + o, i] x[n, h, i] + bias[h O/H + o] for x [N, I] seen as [N, H, I/H]
/// and w [O, I/H]. Gradients as in linear; the same bits for a row whatever the others.
Tensor block_linear(const Tensor& x, const Weight& w, const Weight* bias = nullptr);

}  // namespace tessera::ops
