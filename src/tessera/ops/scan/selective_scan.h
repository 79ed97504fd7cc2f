// The selective scan (Mamba-1): definition, chunked form, and its kernels with gradients.
// Gu, Dao 2023, arXiv:2312.00752.
#pragma once

#include <utility>

#include "tessera/ops/documents.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops {

/// delta_t = softplus(dt_t + dt_bias);  h_t = exp(delta_t A) h_{t-1} + delta_t x_t B_t^T;
/// y_t = h_t C_t + D x_t. x, dt, b and c of one dtype; A not positive; all but they in float32 or
/// better. Statistics and states are float32, or double for double.
struct SelectiveScan {
  Tensor x_TE, dt_TE, dt_bias_E;
  Tensor a_NE;  // [N, E]: state width first, as the states are kept
  Tensor b_TN, c_TN;
  Tensor d_E;
};

/// Whole documents from a state of zeros. Differentiable: on a CPU by kernels that keep a state
/// every few tokens and compute the others again; elsewhere, and in double, by the chunked form.
Tensor selective_scan(const SelectiveScan& in, const Lengths& lengths, int64_t chunk);

/// One document's tokens from state_NE on (undefined = zeros); returns y and the state after them.
/// Differentiable, as selective_scan is.
std::pair<Tensor, Tensor> selective_scan_from(const SelectiveScan& in,
                                              int64_t chunk,
                                              const Tensor& state_NE);

/// The same by ordinary operations: chunks of `chunk` tokens.
std::pair<Tensor, Tensor> selective_scan_chunked(const SelectiveScan& in,
                                                 int64_t chunk,
                                                 const Tensor& state_NE = {});

/// The same one token at a time: the definition.
std::pair<Tensor, Tensor> selective_scan_recurrent(const SelectiveScan& in,
                                                   const Tensor& state_NE = {});

/// The batch-invariant kernel in float32, without gradients; state_NE is updated in place.
Tensor selective_scan_kernel(const SelectiveScan& in, Tensor& state_NE);

}  // namespace tessera::ops
