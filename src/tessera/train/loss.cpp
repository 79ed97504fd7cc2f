#include "tessera/train/loss.h"

#include <torch/csrc/autograd/autograd.h>

#include <cmath>

namespace tessera::train {
namespace {

/// Calls visit(begin, length) over chunks of the rows.
template <class Visit>
void each_chunk(int64_t n, int64_t vocab, Visit visit) {
  const int64_t chunk = loss_chunk(vocab);
  for (int64_t begin = 0; begin < n; begin += chunk) visit(begin, std::min(chunk, n - begin));
}

/// exp(z - max) in place of the logits; returns {ln sum exp z, sum exp(z - max)}, [N, 1] each.
std::pair<Tensor, Tensor> exponentiate_(Tensor& logits_NC) {
  const Tensor max = logits_NC.amax(-1, true);
  logits_NC.sub_(max).exp_();
  const Tensor sum = logits_NC.sum(-1, true);
  return {sum.log() + max, sum};
}

/// Without the rows that have no target, where they are the most: a task scores few of its tokens.
std::pair<Tensor, Tensor> with_targets(const Tensor& hidden_ND, const Tensor& targets_N) {
  const Tensor rows = (targets_N >= 0).nonzero().squeeze(1);
  if (2 * rows.size(0) > targets_N.size(0)) return {hidden_ND, targets_N};
  return {hidden_ND.index_select(0, rows), targets_N.index_select(0, rows)};
}

double masked_sum(const Tensor& values_N1, const Tensor& valid_N1) {
  return at::where(valid_N1, values_N1.to(at::kDouble), 0.0).sum().item<double>();
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

Score score(const model::Model& model, const Tensor& hidden_ND, const Tensor& targets_N) {
  const at::NoGradGuard no_grad;
  const auto [hidden, targets] = with_targets(hidden_ND, targets_N);
  Score sum;
  each_chunk(hidden.size(0), model.spec().vocab, [&](int64_t begin, int64_t length) {
    const Tensor wanted = targets.narrow(0, begin, length);
    Tensor logits = model.logits(hidden.narrow(0, begin, length));
    logits = logits.to(ops::wide(logits));
    sum.hits += logits.argmax(-1).eq(wanted).sum().item<int64_t>();
    const Tensor hit = logits.gather(-1, wanted.clamp_min(0).unsqueeze(-1));
    sum.nats += masked_sum(exponentiate_(logits).first - hit, (wanted >= 0).unsqueeze(-1));
  });
  return sum;
}

double loss_and_backward(const model::Model& model,
                         const Tensor& hidden_ND,
                         const Tensor& targets_N,
                         const LossOptions& options,
                         const Tensor& added) {
  const auto [scored, targets] = with_targets(hidden_ND, targets_N);
  const Tensor hidden = scored.detach().requires_grad_(true);
  double nats = 0;
  each_chunk(hidden.size(0), model.spec().vocab, [&](int64_t begin, int64_t length) {
    const Tensor logits = model.logits(hidden.narrow(0, begin, length));
    Tensor gradient = logits.detach();
    if (gradient.scalar_type() != ops::wide(gradient)) gradient = gradient.to(ops::wide(gradient));
    nats += cross_entropy_(gradient, targets.narrow(0, begin, length), options);
    logits.backward(gradient.to(logits.scalar_type()));
  });
  if (!std::isfinite(nats)) return nats;
  std::vector<Tensor> roots, gradients;
  if (hidden.grad().defined()) {
    roots.push_back(scored);
    gradients.push_back(hidden.grad());
  }
  if (added.defined() && added.requires_grad()) {
    roots.push_back(added);
    gradients.push_back(at::full_like(added, options.scale));
  }
  if (!roots.empty()) torch::autograd::backward(roots, gradients);
  return nats;
}

}  // namespace tessera::train
