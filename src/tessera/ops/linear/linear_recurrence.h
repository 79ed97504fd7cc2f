// Linear recurrences with a matrix state: one op for linear attention, retention, GLA, HGRN2,
// DeltaNet, Gated DeltaNet, KDA, RWKV-5 to 7 and mLSTM. Chunked, recurrent, and a kernel.
#pragma once

#include <utility>
#include <vector>

#include "tessera/ops/documents.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops {

/// Per head, with state S [K, V] and d_t = exp(log_decay_t):
///   plain:       S_t = d_t o S_{t-1} + k_t v_t^T
///   delta rule:  P = d_t o S_{t-1};  S_t = P + beta_t k_t (v_t - P^T k_t)^T
///   rank one:    S_t = d_t o S_{t-1} + b_t (S_{t-1}^T a_t)^T + k_t v_t^T
///   y_t = S_t^T q_t, or with a bonus u  y_t = S_{t-1}^T q_t + (q_t . (u o k_t)) v_t
/// At most one of beta, (a, b) and u is defined. A normaliser is one more column of v that holds
/// ones: the same column of y is then q_t . sum_s k_s. Head h of H reads head h / (H / G) of the G
/// that q and k have, each of them.
struct LinearRecurrence {
  Tensor q_BTHK, k_BTHK, v_BTHV;
  Tensor log_decay = {};  // undefined (1), [H], [B, T, H] or [B, T, H, K]; finite, at most 0
  Tensor beta_BTH = {};
  Tensor a_BTHK = {}, b_BTHK = {};
  Tensor u_HK = {};
  /// Where they are given, B = 1 and the T tokens are documents of these lengths, one after
  /// another, each of which begins with a state of zeros. Only where y alone is asked for.
  Lengths documents = {};
};

/// Products of whole chunks of `chunk` tokens, recurrent across them; chunk >= T is the parallel
/// form. Memory O(T chunk). state_BHKV may be undefined (zeros). Returns y_BTHV and the final
/// state, which is float32 or double. No exponent is positive, so no decay overflows: within a
/// chunk, decays per channel are taken relative to the starts of blocks of 16 tokens.
std::pair<Tensor, Tensor> linear_recurrence_chunked(const LinearRecurrence& in,
                                                    int64_t chunk,
                                                    const Tensor& state_BHKV = {});

/// One token at a time: the definition.
std::pair<Tensor, Tensor> linear_recurrence_recurrent(const LinearRecurrence& in,
                                                      const Tensor& state_BHKV = {});

/// What state-space models add: v_t is replaced by rate_t v_t, and skip v_t is added to y_t.
struct ValueScales {
  Tensor rate_BTH = {}, skip_H = {};
};

/// On a CPU in at most float32: the kernel token by token and its adjoint, with gradients (but none
/// of gradients).
std::pair<Tensor, Tensor> linear_recurrence_fused(const LinearRecurrence& in,
                                                  const Tensor& state_BHKV = {},
                                                  const ValueScales& scales = {});

/// Its y alone, of sequences that begin with a state of zeros. Where no gradient is asked for, in
/// chunks if the kernels have that form for the rule: fewer operations, other roundings.
Tensor linear_recurrence_fused_y(const LinearRecurrence& in, const ValueScales& scales = {});

/// The fused form where it applies, else the chunked one.
std::pair<Tensor, Tensor> linear_recurrence(const LinearRecurrence& in,
                                            int64_t chunk,
                                            const Tensor& state_BHKV = {});
/// Its y alone, from a state of zeros.
Tensor linear_recurrence_y(const LinearRecurrence& in, int64_t chunk);

/// The batch-invariant kernel for B = 1 in float32 without gradients; state_HKV is updated in
/// place. Returns y_BTHV.
Tensor linear_recurrence_scan(const LinearRecurrence& in, Tensor& state_HKV);

/// Its documents, each separately.
std::vector<LinearRecurrence> by_document(const LinearRecurrence& in);

/// Without order: y_t = (sum over all s of k_s v_s^T)^T q_t. Only q, k, v and the documents are
/// read.
Tensor linear_recurrence_whole(const LinearRecurrence& in);

/// sum_c x[..., c] w[..., c]; w is broadcast. One order of summation where kernels apply.
Tensor row_dots(const Tensor& x, const Tensor& w);

/// ln sigmoid(x), ln(lb + (1 - lb) sigmoid(x)) and -e^x: log decays. Few values, computed in double
/// where kernels apply. An undefined lb_C is 0; a defined one is above 0 and below 1.
Tensor log_sigmoid(const Tensor& x);
Tensor log_sigmoid_above(const Tensor& x, const Tensor& lb_C);
Tensor minus_exp(const Tensor& x);

}  // namespace tessera::ops
