// The operations of fused.h by kernels of CUDA (cuda/kernels): Form::cuda, float32. Gradients of
// gradients are not offered.
#pragma once

#include "tessera/ops/basic/rope.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops {

/// rms_norm of pointwise.h; weight float32 or undefined.
Tensor cuda_rms_norm(const Tensor& x, const Tensor& weight, double offset, double eps);

/// rope of rope.h, tables float32.
Tensor cuda_rope(const Tensor& x_NHD, const RotaryTable& table, bool interleaved);

/// silu(gate) * up of one shape.
Tensor cuda_swiglu(const Tensor& gate, const Tensor& up);

}  // namespace tessera::ops
