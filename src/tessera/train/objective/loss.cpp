#include "tessera/train/objective/loss.h"

#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>

#include "tessera/infer/evaluation/score.h"
#include "tessera/ops/weights/product_settings.h"

namespace tessera::train {
namespace {

/// Replaces the logits by exp(z - max); returns {ln sum exp z, sum exp(z - max)}, [N, 1] each.
std::pair<Tensor, Tensor> exponentiate_(Tensor& logits_NC) {
  const Tensor max = logits_NC.amax(-1, true);
  logits_NC.sub_(max).exp_();
  const Tensor sum = logits_NC.sum(-1, true);
  return {sum.log() + max, sum};
}

/// Selected rows of hidden states.
struct ScoredRows {
  Tensor hidden_ND, targets_N, weight_N, rows_N;
};

/// Leaves out rows without target if they are the majority: a task scores few tokens.
ScoredRows with_targets(const Tensor& hidden_ND, const Tensor& targets_N, const Tensor& weight_N) {
  const Tensor rows = infer::rows_with_targets(targets_N);
  const auto there = [&](const Tensor& x) { return x.defined() ? x.to(hidden_ND.device()) : x; };
  if (2 * rows.size(0) > targets_N.size(0))
    return {hidden_ND, there(targets_N), there(weight_N),
            at::arange(targets_N.size(0), at::TensorOptions(hidden_ND.device()).dtype(at::kLong))};
  return {hidden_ND.index_select(0, there(rows)), there(targets_N.index_select(0, rows)),
          weight_N.defined() ? there(weight_N.index_select(0, rows)) : Tensor(), there(rows)};
}

DeferredNumber masked_sum(const Tensor& values_N1, const Tensor& valid_N1) {
  return deferred_sum(at::where(valid_N1, values_N1.to(at::kDouble), 0.0));
}

}  // namespace

DeferredNumber deferred_sum(const Tensor& values) {
  const Tensor own = values.detach();
  return own.is_cpu() ? DeferredNumber(infer::sum_in_order(own))
                      : DeferredNumber(own.to(at::kDouble).sum());
}

int64_t loss_chunk(int64_t vocab) {
  // 16 MiB of logits: enough rows for a fast matrix product, small compared with activations
  return std::max<int64_t>(16, (int64_t{1} << 22) / vocab);
}

TokenLosses& TokenLosses::operator+=(const TokenLosses& other) {
  nll += other.nll;
  smoothed += other.smoothed;
  z += other.z;
  return *this;
}

bool TokenLosses::known_bad() const {
  return smoothed.is_read() && !std::isfinite(double{smoothed});
}

TokenLosses cross_entropy_(Tensor& logits_NC, const Tensor& targets_N, const LossOptions& options) {
  const Tensor valid = (targets_N >= 0).unsqueeze(-1),
               targets = targets_N.clamp_min(0).unsqueeze(-1);
  const int64_t classes = logits_NC.size(-1);
  const double e = options.smoothing.over_all(classes);
  const Tensor hit = logits_NC.gather(-1, targets);
  Tensor mean, largest, where_largest;
  if (e != 0) mean = logits_NC.mean(-1, true);
  if (options.l2_wrap != 0) std::tie(largest, where_largest) = logits_NC.max(-1, true);
  const auto [lse, sum] = exponentiate_(logits_NC);
  TokenLosses out;
  const Tensor nll = lse - hit;
  out.nll = masked_sum(nll, valid);
  if (options.nll_N != nullptr)
    *options.nll_N = at::where(valid, nll.to(at::kDouble), 0.0).squeeze(-1);
  out.smoothed = out.nll;
  if (e != 0) (out.smoothed = out.nll.times(1 - e)) += masked_sum(lse - mean, valid).times(e);
  if (options.z_loss != 0) out.z = masked_sum(lse.square(), valid).times(options.z_loss);
  // softmax times the row's factor, minus the target distribution
  Tensor weight = valid.to(logits_NC.scalar_type()) * options.scale;
  if (options.weight_N.defined())
    weight = weight * options.weight_N.unsqueeze(-1).to(weight.scalar_type());
  Tensor factor = weight / sum;
  if (options.z_loss != 0) factor = factor * (1 + 2 * options.z_loss * lse);
  logits_NC.mul_(factor);
  if (e != 0) logits_NC.sub_(weight * (e / static_cast<double>(classes)));
  logits_NC.scatter_add_(-1, targets, weight * (e - 1));
  if (options.l2_wrap != 0)
    logits_NC.scatter_add_(-1, where_largest, weight * largest * options.l2_wrap);
  return out;
}

HeadLoss head_loss(const model::Model& model,
                   const Tensor& hidden_ND,
                   const Tensor& targets_N,
                   const LossOptions& options) {
  const auto [scored, targets, weights, numbers] =
      with_targets(hidden_ND, targets_N, options.weight_N);
  const int64_t n = scored.size(0), width = infer::head_width(model.spec()),
                chunk = loss_chunk(width);
  const bool learns =
      options.gradients && (options.scale != 0 || options.added_gradient != nullptr);
  const bool has_body = learns && scored.requires_grad();  // otherwise only the head is trained
  HeadLoss out;
  if (has_body) out.gradient = at::zeros(scored.sizes(), scored.options());
  const ops::ProductSettings of_head{.type = options.products, .gradients_in_place = true};
  LossOptions here = options;
  Tensor of_chunk;
  std::vector<Tensor> nll;
  if (options.nll_N != nullptr) here.nll_N = &of_chunk;
  for (int64_t begin = 0; begin < n; begin += chunk) {
    const int64_t length = std::min(chunk, n - begin);
    const Tensor rows = scored.detach().narrow(0, begin, length).requires_grad_(has_body);
    const Tensor logits = model.logits(rows, of_head);
    if (weights.defined()) here.weight_N = weights.narrow(0, begin, length);
    Tensor gradient = logits.detach();
    if (gradient.scalar_type() != ops::wide(gradient)) gradient = gradient.to(ops::wide(gradient));
    Tensor added_gradient;
    if (options.added_gradient)
      added_gradient = options.added_gradient(gradient, numbers.narrow(0, begin, length),
                                              targets.narrow(0, begin, length));
    out.sums += cross_entropy_(gradient, targets.narrow(0, begin, length), here);
    if (of_chunk.defined()) nll.push_back(of_chunk);
    if (added_gradient.defined()) gradient.add_(added_gradient);
    if (!learns || !logits.requires_grad()) continue;
    logits.backward(gradient.to(logits.scalar_type()));
    if (has_body) out.gradient.narrow(0, begin, length).copy_(rows.grad());
  }
  if (has_body) out.root = scored;
  if (options.nll_N != nullptr) {
    const bool some = scored.size(0) < hidden_ND.size(0);
    const auto on = at::TensorOptions(hidden_ND.device()).dtype(at::kDouble);
    Tensor all = nll.empty() ? at::zeros({0}, on) : at::cat(nll);
    if (some) all = at::zeros({hidden_ND.size(0)}, on).index_copy(0, numbers, all);
    *options.nll_N = all;
  }
  return out;
}

void backward_from(const HeadLoss& head, const Tensor& added) {
  std::vector<Tensor> roots, gradients;
  if (head.root.defined()) {
    roots.push_back(head.root);
    gradients.push_back(head.gradient);
  }
  if (added.defined() && added.requires_grad()) {
    roots.push_back(added);
    gradients.push_back(at::ones_like(added));
  }
  if (!roots.empty()) torch::autograd::backward(roots, gradients);
}

TokenLosses loss_and_backward(const model::Model& model,
                              const Tensor& hidden_ND,
                              const Tensor& targets_N,
                              const LossOptions& options,
                              const Tensor& added) {
  const HeadLoss head = head_loss(model, hidden_ND, targets_N, options);
  if (!head.sums.known_bad()) backward_from(head, added);
  return head.sums;
}

}  // namespace tessera::train
