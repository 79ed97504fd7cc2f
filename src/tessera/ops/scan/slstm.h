// The sLSTM cell: definition, and its kernels with gradients. Beck et al. 2024, arXiv:2405.04517.
#pragma once

#include <utility>

#include "tessera/ops/documents.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops {

/// g = pre_g + R_g h_{t-1} for g in i, f, z, o, R block-diagonal by heads of P channels;
/// c = f' c + i' tanh(z), n = f' n + i', h = sigmoid(o) c / n, stabilised by m
/// (kernels/scan/slstm.h). pre in any float type; r in float32, or double for double. D = H P.
struct Slstm {
  Tensor pre_N4D;
  Tensor r_4DP;
};

/// Whole documents; h [N, D]. The recurrence runs through the gates, so that no form is parallel in
/// time. Differentiable: on a CPU by kernels, elsewhere and in double by slstm_recurrent.
Tensor slstm(const Slstm& in, const Lengths& lengths);

/// One document's tokens from state_4D on (h, c, n, m; undefined = the first is the document's
/// first); h and the state after them. Differentiable, as slstm is.
std::pair<Tensor, Tensor> slstm_from(const Slstm& in, const Tensor& state_4D);

/// The same by ordinary operations, token by token.
std::pair<Tensor, Tensor> slstm_recurrent(const Slstm& in, const Tensor& state_4D = {});

/// The batch-invariant kernel in float32, without gradients; state_4D is updated in place and not
/// read when the first token is the document's first.
Tensor slstm_kernel(const Slstm& in, Tensor& state_4D, bool fresh);

}  // namespace tessera::ops
