// Attention whose weights are a function of each score alone, without a softmax over the keys: what
// the gated attention unit uses. Hua et al. 2022, arXiv:2202.10447.
#pragma once

#include "tessera/ops/attention/attention.h"

namespace tessera::ops {

enum class ScoreAct {
  relu2,    // max(x, 0)^2
  laplace,  // (1 + erf((x - sqrt(1/2)) sqrt(2 pi))) / 2: relu2, made smooth and bounded
};

/// What becomes of q . k.
struct UnitScores {
  Tensor divisor_T;  // [T]
  ScoreAct act = ScoreAct::relu2;
  bool causal = true;
  int64_t start = 0;    // query i is key number start + i
  Tensor bias_TS = {};  // [T, S], or [B, T, S] where there are sequences; undefined = none
};

/// A = act(q k^T / divisor + bias), zero above the diagonal when causal; A v. q_BTK, k_BSK, v_BSV
/// -> [B, T, V].
Tensor unit_attention(const Tensor& q_BTK,
                      const Tensor& k_BSK,
                      const Tensor& v_BSV,
                      const UnitScores& how);

/// The same for one sequence, with `term` (of keys from position 0 on, after `scale`) added to the
/// scores instead of bias_TS: a few queries at a time, computed again for the gradient. Memory is
/// linear in the keys. q_TK, k_SK, v_SV -> [T, V].
Tensor unit_attention_blocks(const Tensor& q_TK,
                             const Tensor& k_SK,
                             const Tensor& v_SV,
                             const UnitScores& how,
                             const ScoreTerm& term,
                             double scale);

/// The batch-invariant kernels for one sequence in float32: q_TK, and keys and values [S, K] and
/// [S, V] in parts that follow one another, read where they lie. Keys in ascending order; memory
/// for a block of queries at a time.
Tensor unit_attention_kernel(const Tensor& q_TK,
                             const std::vector<Tensor>& k_parts,
                             const std::vector<Tensor>& v_parts,
                             const UnitScores& how);

}  // namespace tessera::ops
