// State-space duality (Mamba-2): parallel, chunked and recurrent forms. Dao, Gu 2024,
// arXiv:2405.21060.
#pragma once

#include <utility>

#include "tessera/ops/documents.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops {

/// Inputs of S_t = exp(dt_t A) S_{t-1} + dt_t x_t B_t^T; y_t = S_t C_t + D x_t. Head h reads group
/// h / (H / G).
struct Ssd {
  Tensor x_BTHP, dt_BTH, a_H, b_BTGN, c_BTGN, d_H;  // a negative; dt after softplus and clamp
  Lengths documents = {};                           // as those of LinearRecurrence
};

/// Quadratic inside chunks of `chunk` tokens, recurrent across them; chunk >= T is the parallel
/// form. state_BHPN may be undefined (zeros). Returns y_BTHP and the final state.
std::pair<Tensor, Tensor> ssd_chunked(const Ssd& in, int64_t chunk, const Tensor& state_BHPN = {});

/// On a CPU in at most float32 by the fused form of linear_recurrence.h, elsewhere ssd_chunked.
std::pair<Tensor, Tensor> ssd(const Ssd& in, int64_t chunk, const Tensor& state_BHPN = {});
/// Its y alone, from a state of zeros.
Tensor ssd_y(const Ssd& in, int64_t chunk);

/// One token at a time: the definition.
std::pair<Tensor, Tensor> ssd_recurrent(const Ssd& in, const Tensor& state_BHPN = {});

/// The batch-invariant kernel for B = 1 in float32 without gradients; state_HPN is updated in
/// place. Returns y_BTHP.
Tensor ssd_scan(const Ssd& in, Tensor& state_HPN);

}  // namespace tessera::ops
