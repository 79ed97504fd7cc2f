// The real part of the discrete Fourier transform over time and channels: FNet, arXiv:2105.03824,
// equation 3.
#pragma once

#include "tessera/ops/tensor.h"

namespace tessera::ops {

/// Re(F_T x F_D) of x [B, T, D] or [T, D], float32 or double. Differentiable any number of times:
/// it is its own adjoint.
Tensor real_dft(const Tensor& x_TD);

}  // namespace tessera::ops
