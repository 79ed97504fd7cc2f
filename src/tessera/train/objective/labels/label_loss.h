// Losses of labels, as sums over rows; gradients by autograd. Computed in double, as there are few
// rows.
#pragma once

#include "tessera/ops/tensor.h"

namespace tessera::train {

/// Cross-entropy, each row times the weight of its class; weights_C may be undefined.
Tensor class_loss(const Tensor& logits_NC, const Tensor& classes_N, const Tensor& weights_C = {});
/// Binary cross-entropy of every class; targets 0 or 1.
Tensor classes_loss(const Tensor& logits_NC, const Tensor& targets_NC);
/// Squared error.
Tensor score_loss(const Tensor& numbers_N, const Tensor& scores_N);
/// Mean of the cross-entropies of the first and the last token of an answer, over the tokens of one
/// document.
Tensor answer_loss(const Tensor& logits_T2, int64_t first, int64_t last);

}  // namespace tessera::train
