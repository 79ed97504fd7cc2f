// What decoding's steps (nn/decode_step.h) of mixers with states of fixed size share.
#pragma once

#include <algorithm>

#include "tessera/kernels/linear/linear_recurrence.h"
#include "tessera/nn/decode_step.h"
#include "tessera/nn/mixer/convolution/causal_conv.h"
#include "tessera/nn/step_products.h"
#include "tessera/ops/form.h"

namespace tessera::nn {

/// Whether such a step takes a call: one token of each row, which stays (the inputs of pending ones
/// are kept for a replay), with nothing left to replay, on states of float32 in this machine's
/// memory.
inline bool goes_on_by_a_token(const Batch& batch, const StateRows* rows, size_t fixed_tensors) {
  if (rows == nullptr) return false;
  for (size_t i = 0; i < rows->size(); ++i) {
    const Segment& s = batch.segments[i];
    RowState& row = *(*rows)[i];
    if (s.length != 1 || s.pending || row.replay().defined()) return false;
    for (size_t j = 0; j < fixed_tensors; ++j)
      if (const Tensor& state = row.fixed(j);
          state.scalar_type() != at::kFloat || !ops::on_host(state) || !state.is_contiguous())
        return false;
  }
  return true;
}

/// The memory of a row's tensor, to be written over; on the thread that the row is.
inline float* state_of(RowState& row, size_t declaration) {
  return row.fixed_in_place(declaration).data_ptr<float>();
}

/// One token of one head, by the kernel of ops::linear_recurrence_scan: K and V channels.
struct HeadToken {
  int64_t key_dim = 0, value_dim = 0;
  const float *q = nullptr, *k = nullptr, *v = nullptr;
  kernels::DecayPer decay = kernels::DecayPer::nothing;
  const float* log_decay = nullptr;        // of the head, or of its channels
  const float* beta = nullptr;             // of the delta rule
  const float *a = nullptr, *b = nullptr;  // of rank one
  const float* bonus = nullptr;            // of the present token
  float* state = nullptr;                  // [K, V]
  float* y = nullptr;
};
inline void recur(const HeadToken& of) {
  kernels::LinearRecurrence r;
  r.T = r.H = r.G = 1, r.K = of.key_dim, r.V = of.value_dim;
  r.q = of.q, r.k = of.k, r.v = of.v;
  r.decay = of.decay, r.log_decay = of.log_decay;
  r.beta = of.beta;
  r.a = of.a, r.b = of.b;
  r.bonus = of.bonus;
  r.state = of.state;
  r.y = of.y;
  kernels::linear_recurrence(r);
}

}  // namespace tessera::nn
