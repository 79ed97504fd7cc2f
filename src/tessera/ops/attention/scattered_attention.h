// Attention of whole sequences under a scattered pattern (kernels/attention/visibility.h), with
// gradients: every query goes through the list of its keys. Its definition is attention_plain.
#pragma once

#include "tessera/ops/attention/attention.h"

namespace tessera::ops {

/// Where attention_form.h chooses lists; as flash_attention (flash_attention.h).
Tensor scattered_attention(const Tensor& q_BTHD,
                           const Tensor& k_BSGD,
                           const Tensor& v_BSGD,
                           int64_t start,
                           int64_t first,
                           const ScoreOptions& options);

}  // namespace tessera::ops
