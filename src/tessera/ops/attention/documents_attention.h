// Whole documents concatenated, computed in parallel by the batch-invariant kernel.
#pragma once

#include "tessera/ops/attention/attention.h"

namespace tessera::ops {

/// attention_kernel() of every document of q_NHD, k_NGD and v_NGD separately; without a term, a
/// pattern or far queries. float32 on a CPU, no gradient.
Tensor attention_kernel_of_documents(const Tensor& q_NHD,
                                     const Tensor& k_NGD,
                                     const Tensor& v_NGD,
                                     const std::vector<int64_t>& lengths,
                                     const ScoreOptions& options);

}  // namespace tessera::ops
