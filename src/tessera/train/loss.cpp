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
  const auto [lse, sum] = exponentiate_(logits_NC);
  const double nats = masked_sum(lse - hit, valid);
  // softmax times the row's factor, less one at the target
  const Tensor weight = valid.to(logits_NC.scalar_type()) * options.scale;
  Tensor factor = weight / sum;
  if (options.z_loss != 0) factor = factor * (1 + 2 * options.z_loss * lse);
  logits_NC.mul_(factor);
  logits_NC.scatter_add_(-1, targets, -weight);
  return nats;
}

double loss_sum(const model::Model& model, const Tensor& hidden_ND, const Tensor& targets_N) {
  const at::NoGradGuard no_grad;
  double nats = 0;
  each_chunk(hidden_ND.size(0), model.spec().vocab, [&](int64_t begin, int64_t length) {
    const Tensor targets = targets_N.narrow(0, begin, length);
    Tensor logits = model.logits(hidden_ND.narrow(0, begin, length));
    logits = logits.to(ops::wide(logits));
    const Tensor hit = logits.gather(-1, targets.clamp_min(0).unsqueeze(-1));
    nats += masked_sum(exponentiate_(logits).first - hit, (targets >= 0).unsqueeze(-1));
  });
  return nats;
}

double loss_and_backward(const model::Model& model,
                         const Tensor& hidden_ND,
                         const Tensor& targets_N,
                         const LossOptions& options,
                         const Tensor& added) {
  const Tensor hidden = hidden_ND.detach().requires_grad_(true);
  double nats = 0;
  each_chunk(hidden.size(0), model.spec().vocab, [&](int64_t begin, int64_t length) {
    const Tensor logits = model.logits(hidden.narrow(0, begin, length));
    Tensor gradient = logits.detach();
    if (gradient.scalar_type() != ops::wide(gradient)) gradient = gradient.to(ops::wide(gradient));
    nats += cross_entropy_(gradient, targets_N.narrow(0, begin, length), options);
    logits.backward(gradient.to(logits.scalar_type()));
  });
  if (!std::isfinite(nats)) return nats;
  std::vector<Tensor> roots{hidden_ND}, gradients{hidden.grad()};
  if (added.defined() && added.requires_grad()) {
    roots.push_back(added);
    gradients.push_back(at::full_like(added, options.scale));
  }
  torch::autograd::backward(roots, gradients);
  return nats;
}

}  // namespace tessera::train
