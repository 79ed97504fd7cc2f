// Norms, activations, gates and caps: what acts on one row at a time.
#pragma once

#include <optional>

#include "tessera/kernels/activation.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops {

using kernels::Activation;

/// y = x / sqrt(mean(x^2) + eps) * (weight + offset), statistics in float32 or double. weight may
/// be undefined.
Tensor rms_norm(const Tensor& x, const Tensor& weight, double offset, double eps);

/// y = (x - mean) / sqrt(var + eps) * (weight + offset) + bias. weight and bias may be undefined.
Tensor layer_norm(
    const Tensor& x, const Tensor& weight, const Tensor& bias, double offset, double eps);

/// Definitions: kernels/activation.h; gelu is exact, gelu_tanh the tanh form.
Tensor activate(const Tensor& x, Activation act);

/// act(gate) * up
Tensor gated(const Tensor& gate, const Tensor& up, Activation act);

/// c * tanh(x / c); x itself when c is 0.
Tensor softcap(const Tensor& x, double c);

/// ln(1 + e^x), for step sizes: few values, computed in double where kernels apply.
Tensor softplus(const Tensor& x);

/// RMSNorm over groups of channels of y * silu(z), times weight: Mamba-2's gated norm.
Tensor gated_rms_norm(
    const Tensor& y, const Tensor& z, const Tensor& weight, int64_t groups, double eps);

}  // namespace tessera::ops
