#include "tessera/train/loss.h"

#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>

#include "tessera/infer/score.h"

namespace tessera::train {
namespace {

/// exp(z - max) in place of the logits; returns {ln sum exp z, sum exp(z - max)}, [N, 1] each.
std::pair<Tensor, Tensor> exponentiate_(Tensor& logits_NC) {
  const Tensor max = logits_NC.amax(-1, true);
  logits_NC.sub_(max).exp_();
  const Tensor sum = logits_NC.sum(-1, true);
  return {sum.log() + max, sum};
}

/// Without the rows that have no target, where they are the most: a task scores few of its tokens.
std::pair<Tensor, Tensor> with_targets(const Tensor& hidden_ND, const Tensor& targets_N) {
  const Tensor rows = infer::rows_with_targets(targets_N);
  if (2 * rows.size(0) > targets_N.size(0)) return {hidden_ND, targets_N};
  return {hidden_ND.index_select(0, rows), targets_N.index_select(0, rows)};
}

double masked_sum(const Tensor& values_N1, const Tensor& valid_N1) {
  return infer::sum_in_order(at::where(valid_N1, values_N1.to(at::kDouble), 0.0));
}

}  // namespace

int64_t loss_chunk(int64_t vocab) {
  // 16 MiB of logits: enough rows for the product to run at full speed, small against activations
  return std::max<int64_t>(16, (int64_t{1} << 22) / vocab);
}

double cross_entropy_(Tensor& logits_NC, const Tensor& targets_N, const LossOptions& options) {
  const Tensor valid = (targets_N >= 0).unsqueeze(-1),
               targets = targets_N.clamp_min(0).unsqueeze(-1);
  const Tensor hit = logits_NC.gather(-1, targets);
  Tensor largest, where_largest;
  if (options.l2_wrap != 0) std::tie(largest, where_largest) = logits_NC.max(-1, true);
  const auto [lse, sum] = exponentiate_(logits_NC);
  const double nats = masked_sum(lse - hit, valid);
  // softmax times the row's factor, less one at the target
  const Tensor weight = valid.to(logits_NC.scalar_type()) * options.scale;
  Tensor factor = weight / sum;
  if (options.z_loss != 0) factor = factor * (1 + 2 * options.z_loss * lse);
  logits_NC.mul_(factor);
  logits_NC.scatter_add_(-1, targets, -weight);
  if (options.l2_wrap != 0)
    logits_NC.scatter_add_(-1, where_largest, weight * largest * options.l2_wrap);
  return nats;
}

HeadLoss head_loss(const model::Model& model,
                   const Tensor& hidden_ND,
                   const Tensor& targets_N,
                   const LossOptions& options) {
  const auto [scored, targets] = with_targets(hidden_ND, targets_N);
  // nothing behind the head may be trained
  const Tensor hidden = scored.detach().requires_grad_(scored.requires_grad());
  const int64_t n = hidden.size(0), width = infer::head_width(model.spec());
  double nats = 0;
  for (int64_t begin = 0; begin < n; begin += loss_chunk(width)) {
    const int64_t length = std::min(loss_chunk(width), n - begin);
    const Tensor logits = model.logits(hidden.narrow(0, begin, length));
    Tensor gradient = logits.detach();
    if (gradient.scalar_type() != ops::wide(gradient)) gradient = gradient.to(ops::wide(gradient));
    nats += cross_entropy_(gradient, targets.narrow(0, begin, length), options);
    if (logits.requires_grad()) logits.backward(gradient.to(logits.scalar_type()));
  }
  return hidden.grad().defined() ? HeadLoss{nats, scored, hidden.grad()}
                                 : HeadLoss{nats, Tensor(), Tensor()};
}

double loss_and_backward(const model::Model& model,
                         const Tensor& hidden_ND,
                         const Tensor& targets_N,
                         const LossOptions& options,
                         const Tensor& added) {
  const auto [nats, root, gradient] = head_loss(model, hidden_ND, targets_N, options);
  if (!std::isfinite(nats)) return nats;
  std::vector<Tensor> roots, gradients;
  if (root.defined()) {
    roots.push_back(root);
    gradients.push_back(gradient);
  }
  if (added.defined() && added.requires_grad()) {
    roots.push_back(added);
    gradients.push_back(at::ones_like(added));
  }
  if (!roots.empty()) torch::autograd::backward(roots, gradients);
  return nats;
}

}  // namespace tessera::train
