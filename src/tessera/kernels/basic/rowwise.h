// What acts on each row or element alone: norms, activations, gates, soft caps, sums. float32.
//
// A row's bits depend on that row alone. Statistics are summed in double, in one fixed order.
// y may be an input itself (in place); other overlaps are not allowed. Rows are contiguous.
#pragma once

#include <cstdint>

#include "tessera/kernels/activation.h"

namespace tessera::kernels {

/// y = x / sqrt(mean(x^2) + eps) * (weight + weight_offset); weight null means 1.
/// weight_offset 1 is Gemma's form. Zhang, Sennrich 2019, arXiv:1910.07467.
void rms_norm(const float* x,
              int64_t rows,
              int64_t d,
              const float* weight,
              float weight_offset,
              float eps,
              float* y);

/// y = (x - mean) / sqrt(var + eps) * (weight + weight_offset) + bias, var over d (biased);
/// weight null means 1, bias null means 0. Ba et al. 2016, arXiv:1607.06450.
void layer_norm(const float* x,
                int64_t rows,
                int64_t d,
                const float* weight,
                const float* bias,
                float weight_offset,
                float eps,
                float* y);

/// y[i] = kind(x[i]) for i < n; relative error at most 2e-6 while |y| is a normal number.
void act(Activation kind, const float* x, int64_t n, float* y);
/// y[i] = kind(gate[i]) * up[i].
void glu(Activation kind, const float* gate, const float* up, int64_t n, float* y);
/// x[i] = cap * tanh(x[i] / cap).
void softcap(float* x, int64_t n, float cap);
/// y[i] += x[i].
void add(const float* x, float* y, int64_t n);

}  // namespace tessera::kernels
