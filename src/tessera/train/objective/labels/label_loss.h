// Losses of labels, as sums over rows; gradients are libtorch's. Computed in double: there are few
// rows.
#pragma once

#include "tessera/ops/tensor.h"

namespace tessera::train {

/// Cross-entropy of classes, each row times the weight of its class; weights_C may be undefined.
Tensor class_loss(const Tensor& logits_NC, const Tensor& classes_N, const Tensor& weights_C = {});
/// Binary cross-entropy of every class; targets 0 or 1.
Tensor classes_loss(const Tensor& logits_NC, const Tensor& targets_NC);
/// Squares of what is missing.
Tensor score_loss(const Tensor& numbers_N, const Tensor& scores_N);
/// The mean of the cross-entropies of the first and the last token of an answer, among the tokens
/// of one document.
Tensor answer_loss(const Tensor& logits_T2, int64_t first, int64_t last);

}  // namespace tessera::train
