// Doubly stochastic matrices by Sinkhorn's normalisation. Sinkhorn, Knopp 1967; as
// manifold-constrained hyper-connections take it: Xie et al. 2025, arXiv:2512.24880, sec. 4.2.
#pragma once

#include "tessera/ops/tensor.h"

namespace tessera::ops {

/// c = softmax(z) of every row of z [N, S, S] + eps; then its columns are divided by their sum +
/// eps, and `iterations` - 1 times its rows and its columns.
Tensor doubly_stochastic(const Tensor& z_NSS, int64_t iterations, double eps);

}  // namespace tessera::ops
