#include "tessera/train/objective/labels/label_loss.h"

namespace tessera::train {

Tensor class_loss(const Tensor& logits_NC, const Tensor& classes_N, const Tensor& weights_C) {
  const Tensor log_p_N = at::log_softmax(logits_NC.to(at::kDouble), -1)
                             .gather(-1, classes_N.unsqueeze(-1).to(logits_NC.device()))
                             .squeeze(-1);
  return weights_C.defined()
             ? -(log_p_N * weights_C.index_select(0, classes_N).to(logits_NC.device())).sum()
             : -log_p_N.sum();
}

Tensor classes_loss(const Tensor& logits_NC, const Tensor& targets_NC) {
  return at::binary_cross_entropy_with_logits(logits_NC.to(at::kDouble),
                                              targets_NC.to(logits_NC.device(), at::kDouble), {},
                                              {}, at::Reduction::Sum);
}

Tensor score_loss(const Tensor& numbers_N, const Tensor& scores_N) {
  return (numbers_N.to(at::kDouble) - scores_N.to(numbers_N.device(), at::kDouble)).square().sum();
}

Tensor answer_loss(const Tensor& logits_T2, int64_t first, int64_t last) {
  const Tensor log_p_T2 = at::log_softmax(logits_T2.to(at::kDouble), 0);
  return -(log_p_T2[first][0] + log_p_T2[last][1]) / 2;
}

}  // namespace tessera::train
