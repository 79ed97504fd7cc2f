// Channels scaled by their statistics over all rows: what batch norm does in training.
// Ioffe, Szegedy 2015, arXiv:1502.03167.
#pragma once

#include "tessera/ops/tensor.h"

namespace tessera::ops {

/// y = (x - mean) / sqrt(var + eps) of x [N, C], over the rows, var divided by N. On a CPU in float32
/// sums over rows are in an order that follows from the shapes alone, here and in the gradient
///   dx = (g - mean(g) - y mean(g y)) / sqrt(var + eps).
Tensor batch_norm(const Tensor& x, double eps);

}  // namespace tessera::ops
