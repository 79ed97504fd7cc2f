// Rows added up with given weights.
#pragma once

#include "tessera/ops/tensor.h"

namespace tessera::ops {

/// y_MC = a_MN v_NC: the batch-invariant kernel where Form::kernel serves v, else a product with
/// gradients.
Tensor weighted_sum(const Tensor& a_MN, const Tensor& v_NC);

}  // namespace tessera::ops
