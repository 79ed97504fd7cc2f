#include "tessera/train/objective/distillation/distillation_losses.h"

#include <cmath>
#include <limits>

#include "tessera/ops/basic/softmax.h"
#include "tessera/ops/weights/product.h"

namespace tessera::train {
namespace {

/// Log-probabilities of the classes in index_NK, and of all others together.
Tensor with_tail(const Tensor& log_NC, const Tensor& index_NK) {
  const Tensor others = log_NC.scatter(-1, index_NK, -std::numeric_limits<double>::infinity());
  return at::cat({log_NC.gather(-1, index_NK), others.logsumexp(-1, true)}, -1);
}

/// sum p (a - b) where p is not 0.
Tensor expected(const Tensor& p, const Tensor& a, const Tensor& b) {
  const Tensor seen = p > 0, zero = at::zeros({}, p.options());
  return (p * (at::where(seen, a, zero) - at::where(seen, b, zero))).sum(-1);
}

/// ln of weights, which may be 0.
Tensor log_of_weights(const Tensor& weights) {
  const double tiny = weights.scalar_type() == at::kDouble
                          ? std::numeric_limits<double>::min()
                          : static_cast<double>(std::numeric_limits<float>::min());
  return weights.clamp_min(tiny).log();
}

}  // namespace

Tensor divergence(const Tensor& student_NC, const Tensor& teacher_NC, const DistillationTerm& how) {
  const double t = how.temperature;
  Tensor log_q = at::log_softmax(student_NC / t, -1), log_p = at::log_softmax(teacher_NC / t, -1);
  if (how.top_k > 0) {
    const Tensor top_NK = std::get<1>(log_p.topk(how.top_k, -1));
    log_q = with_tail(log_q, top_NK);
    log_p = with_tail(log_p, top_NK);
  }
  const Tensor p = log_p.exp();
  Tensor rows_N;
  if (how.divergence == Divergence::forward) {
    rows_N = expected(p, log_p, log_q);
  } else if (how.divergence == Divergence::reverse) {
    rows_N = expected(log_q.exp(), log_q, log_p);
  } else {
    const Tensor log_m = at::logaddexp(log_p + std::log(how.beta), log_q + std::log1p(-how.beta));
    rows_N =
        how.beta * expected(p, log_p, log_m) + (1 - how.beta) * expected(log_q.exp(), log_q, log_m);
  }
  return t * t * rows_N;
}

Tensor distance(const Tensor& student_ND, const Tensor& teacher_ND, HiddenDistance how) {
  if (how == HiddenDistance::mse) return (student_ND - teacher_ND).square().mean(-1);
  const Tensor norms = student_ND.norm(2, -1) * teacher_ND.norm(2, -1);
  return 1 - (student_ND * teacher_ND).sum(-1) / norms.clamp_min(1e-12);
}

Tensor value_relation(const Tensor& values_TGD, int64_t heads) {
  const int64_t t = values_TGD.size(0);
  const Tensor v_HTD =
      (heads > 0 ? values_TGD.reshape({t, heads, -1}) : values_TGD).transpose(0, 1);
  const double scale = 1 / std::sqrt(static_cast<double>(v_HTD.size(2)));
  return ops::softmax(ops::product(v_HTD, v_HTD.transpose(1, 2)) * scale);
}

Tensor weights_divergence(const Tensor& student_HTS, const Tensor& teacher_HTS) {
  return expected(teacher_HTS, log_of_weights(teacher_HTS), log_of_weights(student_HTS)).mean(0);
}

Tensor weights_cross_entropy(const Tensor& student_HTS, const Tensor& teacher_HTS) {
  return expected(teacher_HTS, at::zeros_like(teacher_HTS), log_of_weights(student_HTS)).mean(0);
}

Tensor weights_frobenius(const Tensor& student_HTS, const Tensor& teacher_HTS) {
  return (student_HTS - teacher_HTS).square().sum(-1).mean(0);
}

}  // namespace tessera::train
