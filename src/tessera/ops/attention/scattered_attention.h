// Attention of whole sequences under a scattered pattern (kernels/attention/visibility.h), with
// gradients: every query goes through the list of its keys. Its definition is attention_plain.
#pragma once

#include "tessera/ops/attention/attention.h"

namespace tessera::ops {

/// Whether scattered_attention computes this: floats on a CPU, a scattered pattern, and scores that
/// are products alone.
bool scattered_applies(const Tensor& q, const ScoreOptions& options);

/// As flash_attention (flash_attention.h).
Tensor scattered_attention(const Tensor& q_BTHD,
                           const Tensor& k_BSGD,
                           const Tensor& v_BSGD,
                           int64_t start,
                           int64_t first,
                           const ScoreOptions& options);

}  // namespace tessera::ops
