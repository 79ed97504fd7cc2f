// What the rows of a retention's scores are divided by. Sun et al. 2023, arXiv:2307.08621,
// sec. 2.2.
#pragma once

#include "tessera/ops/tensor.h"

namespace tessera::ops {

/// sqrt(sum_{j <= t} decay^{t-j}) of the tokens t = start .. start + n - 1 of a document, [n, H] in
/// double; log_decay_H below 0.
Tensor retention_decay_norms(const Tensor& log_decay_H, int64_t start, int64_t n);

/// sum_{j <= t} decay^{t-j} |q_t . k_j| of every token of one document, [T, H], without gradients:
/// by a batch-invariant kernel where Form::kernel serves q, else by ordinary operations. Memory for
/// a block of queries at a time.
Tensor retention_magnitudes(const Tensor& q_THK, const Tensor& k_THK, const Tensor& log_decay_H);

}  // namespace tessera::ops
