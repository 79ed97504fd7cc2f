// Attention on a device by torch's fused kernels (flash, memory-efficient, cuDNN), which never hold
// the scores: at::scaled_dot_product_attention chooses among them, and computes the definition
// where none serves. Dao 2023, arXiv:2307.08691; Rabe, Staats 2021, arXiv:2112.05682.
#pragma once

#include "tessera/ops/attention/attention.h"

namespace tessera::ops {

/// Whether every query at positions start .. start + T - 1 sees one of the keys at first .. first +
/// S - 1: what the kernels give for one that sees none differs.
bool every_query_sees_a_key(
    int64_t start, int64_t queries, int64_t first, int64_t keys, bool causal, int64_t window);

/// Where attention_form.h chooses `fused`, and every query sees a key. q_BTHD at positions start
/// .., k and v_BSGD at positions first ... Out: [B, T, H, Dv], of q's type. Products are in
/// options.products. Causality and windows that the kernels do not know are a mask of a block of
/// queries at a time, and keys that none of them sees are left out.
Tensor fused_attention(const Tensor& q_BTHD,
                       const Tensor& k_BSGD,
                       const Tensor& v_BSGD,
                       int64_t start,
                       int64_t first,
                       const ScoreOptions& options);

/// Whether fused_documents computes several documents of any lengths in one call: flash attention
/// of CUDA, 16-bit products, heads of at most 256, no term.
bool fused_serves_packed(const Tensor& q_NHD, const ScoreOptions& options);
/// Documents one after another, `lengths` of N tokens in all, each of which sees its own keys
/// alone: `keys` of S in all, one number a document. q_NHD, k and v_SGD -> [N, H, Dv]. Causality
/// counts from a document's last token and key.
Tensor fused_documents(const Tensor& q_NHD,
                       const Tensor& k_SGD,
                       const Tensor& v_SGD,
                       const std::vector<int64_t>& lengths,
                       const std::vector<int64_t>& keys,
                       const ScoreOptions& options);

}  // namespace tessera::ops
