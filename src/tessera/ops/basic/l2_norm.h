// Vectors of unit length.
#pragma once

#include "tessera/ops/tensor.h"

namespace tessera::ops {

/// x / sqrt(sum x^2 + eps) over the last axis, in x's dtype, statistics in float32 or double.
Tensor l2_norm(const Tensor& x, double eps);

}  // namespace tessera::ops
