// Softmax attention whose values have a width of their own: latent and differential attention.
#pragma once

#include "tessera/ops/attention.h"

namespace tessera::ops {

/// attention() over one run of keys: q_THK, kv.k_SGD [S, G, K], kv.v_SGD [S, G, V] -> [T, H, V].
/// The batch-invariant kernel where use_kernels(q), else the plain form.
Tensor attention_values(const Tensor& q_THK,
                        const KeyValues& kv,
                        int64_t start,
                        const ScoreOptions& options,
                        const std::function<Tensor(const Tensor&)>& drop = {});

}  // namespace tessera::ops
