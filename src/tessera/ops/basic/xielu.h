// The activation xIELU. Huang and Schlag 2024, arXiv:2411.13010.
#pragma once

#include "tessera/ops/tensor.h"

namespace tessera::ops {

/// x > 0: a_p x^2 + beta x; else a_n (e^min(x, eps) - 1 - x) + beta x; a_p = softplus(p) and
/// a_n = beta + softplus(n), p and n [1].
Tensor xielu(const Tensor& x, const Tensor& p, const Tensor& n, double beta, double eps);

}  // namespace tessera::ops
