// The real-gated linear recurrent unit: plain form, and its kernels with gradients.
// De, Smith et al. 2024, arXiv:2402.19427.
#pragma once

#include <utility>

#include "tessera/ops/documents.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops {

/// i = sigmoid(in), r = sigmoid(rec), l = -scale r, a = e^l, m = sqrt(1 - a^2);
/// h_t = a_t h_{t-1} + m_t i_t x_t, and h = i x at a document's first token. x, in and rec of one
/// dtype; scale [W] = 8 softplus(lambda) and the state in float32, or double for double.
/// The derivative of m counts 1 / m as 2000 at most.
struct RgLru {
  Tensor x_TW, in_TW, rec_TW, scale_W;
};

/// Whole documents. Differentiable: on a CPU by kernels, elsewhere and in double by rg_lru_chunked.
Tensor rg_lru(const RgLru& in, const Lengths& lengths, int64_t chunk);

/// One document's tokens from state_W on; undefined = the first is the document's first. Returns h
/// and the last one. Differentiable, as rg_lru is.
std::pair<Tensor, Tensor> rg_lru_from(const RgLru& in, int64_t chunk, const Tensor& state_W);

/// The same by ordinary operations: chunks of `chunk` tokens.
std::pair<Tensor, Tensor> rg_lru_chunked(const RgLru& in,
                                         int64_t chunk,
                                         const Tensor& state_W = {});

/// The batch-invariant kernel in float32, without gradients; state_W is updated in place and not
/// read when the first token is the document's first.
Tensor rg_lru_kernel(const RgLru& in, Tensor& state_W, bool fresh);

}  // namespace tessera::ops
