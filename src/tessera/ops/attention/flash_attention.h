// Attention for training on a CPU: forward and gradient by tiles, memory linear in the keys.
// Its definition is attention_plain. Dao 2023, arXiv:2307.08691.
#pragma once

#include "tessera/ops/attention/attention.h"

namespace tessera::ops {

/// Where attention_form.h chooses tiles. q_BTHD at positions start .., k and v_BSGD at positions
/// first ... Out: [B, T, H, Dv], of q's type; 16-bit floats are computed in float32. Deterministic
/// whatever the threads.
Tensor flash_attention(const Tensor& q_BTHD,
                       const Tensor& k_BSGD,
                       const Tensor& v_BSGD,
                       int64_t start,
                       int64_t first,
                       const ScoreOptions& options);

/// Documents one after another, `lengths` of N tokens in all, each of which sees its own keys
/// alone: `keys` of S in all, one number a document. q_NHD, k and v_SGD -> [N, H, Dv]. Causality
/// and windows go by places in N and S. Patterns do not serve. Where options hold dropout, it has
/// a stream for each document, which draws as if it were alone.
Tensor flash_documents(const Tensor& q_NHD,
                       const Tensor& k_SGD,
                       const Tensor& v_SGD,
                       const std::vector<int64_t>& lengths,
                       const std::vector<int64_t>& keys,
                       const ScoreOptions& options);

}  // namespace tessera::ops
