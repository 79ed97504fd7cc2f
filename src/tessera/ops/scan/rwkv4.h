// The weighted key-value average of RWKV-4: plain form, and its kernels with gradients.
// Peng et al. 2023, arXiv:2305.13048.
#pragma once

#include <utility>

#include "tessera/ops/documents.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops {

/// y_t = (sum_{i<t} e^{(t-1-i) w + k_i} v_i + e^{u+k_t} v_t) / (the same with v = 1), per channel;
/// w negative. k and v of one dtype; w, u and the state in float32, or double for double.
struct Wkv4 {
  Tensor k_TC, v_TC, w_C, u_C;
};

/// Whole documents. Differentiable: on a CPU by kernels that keep their sums every few tokens,
/// elsewhere and in double by wkv4_parallel.
Tensor wkv4(const Wkv4& in, const Lengths& lengths);

/// One document's tokens from state_3C on (num, den, top: sums are num e^top and den e^top);
/// undefined = nothing before. Returns y and the state after them. Differentiable, as wkv4 is.
std::pair<Tensor, Tensor> wkv4_from(const Wkv4& in, const Tensor& state_3C);

/// The same by ordinary operations: prefixes are doubled, log2(T) steps over the whole tensor.
std::pair<Tensor, Tensor> wkv4_parallel(const Wkv4& in, const Tensor& state_3C = {});

/// The batch-invariant kernel in float32, without gradients; state_3C is updated in place and not
/// read when the first token is the document's first.
Tensor wkv4_kernel(const Wkv4& in, Tensor& state_3C, bool fresh);

}  // namespace tessera::ops
