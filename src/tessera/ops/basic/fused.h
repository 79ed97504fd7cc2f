// One pass over memory where the plain form takes many, with gradients: what training on a CPU
// spends its time on apart from products. Float32; Form::learning of their operations. Gradients of
// gradients are not offered.
#pragma once

#include "tessera/ops/basic/rope.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops {

/// rms_norm of pointwise.h with a float32 weight; without one the plain form serves.
Tensor fused_rms_norm(const Tensor& x, const Tensor& weight, double offset, double eps);

/// rope of rope.h, tables float32.
Tensor fused_rope(const Tensor& x_NHD, const RotaryTable& table, bool interleaved);

/// silu(gate) * up.
Tensor fused_swiglu(const Tensor& gate, const Tensor& up);

}  // namespace tessera::ops
