#include "tessera/infer/evaluation/score.h"

#include <algorithm>

#include "tessera/nn/head/head_config.h"

namespace tessera::infer {
namespace {

/// Rows of logits at a time: 32 MiB of doubles, enough rows for a matrix product at full speed.
int64_t rows_at_once(int64_t width) {
  return std::max<int64_t>(128, (int64_t{1} << 22) / width);
}

Tensor losses(const Tensor& wide_NC, const Tensor& targets_N) {
  return at::logsumexp(wide_NC, {-1}) - wide_NC.gather(1, targets_N.unsqueeze(1)).squeeze(1);
}

}  // namespace

Score& Score::operator+=(const Score& other) {
  nats += other.nats;
  hits += other.hits;
  targets += other.targets;
  return *this;
}

int64_t head_width(const model::ModelSpec& spec) {
  require(static_cast<bool>(spec.head), "score", "a model without a head has no logits");
  return spec.head.as<nn::HeadConfig>().outputs(spec.scope_out());
}

Tensor rows_with_targets(const Tensor& targets_N) {
  return (targets_N >= 0).nonzero().squeeze(1);
}

double sum_in_order(const Tensor& values) {
  // a sum by libtorch has as many parts as threads
  const Tensor wide = values.to(at::kCPU, at::kDouble).contiguous();
  const auto* at = wide.const_data_ptr<double>();
  double sum = 0;
  for (int64_t i = 0; i < wide.numel(); ++i) sum += at[i];
  return sum;
}

double nll_sum(const Tensor& logits_NC, const Tensor& targets_N) {
  return sum_in_order(losses(logits_NC.to(at::kDouble), targets_N.to(logits_NC.device())));
}

Score score(const model::Model& model, const Tensor& hidden_ND, const Tensor& targets_N) {
  Scorer scorer(model);
  scorer.add(hidden_ND, targets_N);
  return scorer.finish();
}

Scorer::Scorer(const model::Model& model, int64_t top)
    : model_(&model), at_once_(rows_at_once(head_width(model.spec()))), most_likely_(top) {}

void Scorer::add(const Tensor& hidden_ND, const Tensor& targets_N) {
  const at::NoGradGuard no_gradients;
  const Tensor rows = rows_with_targets(targets_N);
  for (int64_t begin = 0, n = 0; begin < rows.size(0); begin += n) {
    n = std::min(at_once_ - waiting_, rows.size(0) - begin);
    const Tensor some = rows.narrow(0, begin, n);
    hidden_.push_back(hidden_ND.index_select(0, some.to(hidden_ND.device())));
    targets_.push_back(targets_N.index_select(0, some));
    waiting_ += n;
    if (waiting_ == at_once_) score_waiting();
  }
}

Score Scorer::finish(std::vector<double>* log_p, std::vector<std::vector<TokenLogprob>>* top) {
  if (waiting_ > 0) score_waiting();
  if (top != nullptr) *top = std::move(top_);
  if (log_p != nullptr) *log_p = std::move(log_p_);
  return sum_;
}

void Scorer::score_waiting() {
  const at::NoGradGuard no_gradients;
  const Tensor logits = model_->logits(at::cat(hidden_)).to(at::kDouble);
  const Tensor wanted = at::cat(targets_).to(logits.device());
  const Tensor nats = losses(logits, wanted).cpu().contiguous();
  sum_.nats += sum_in_order(nats);
  sum_.hits += logits.argmax(-1).eq(wanted).sum().item<int64_t>();
  sum_.targets += waiting_;
  for (int64_t i = 0; i < waiting_; ++i) log_p_.push_back(-nats.const_data_ptr<double>()[i]);
  if (most_likely_ > 0) {
    const Tensor rows = logits.to(at::kCPU, at::kFloat).contiguous();
    const auto width = static_cast<size_t>(rows.size(1));
    for (int64_t i = 0; i < waiting_; ++i) {
      const auto* row = rows.const_data_ptr<float>() + i * rows.size(1);
      top_.push_back(logprobs_of({row, width}, 0, most_likely_).top);
    }
  }
  hidden_.clear();
  targets_.clear();
  waiting_ = 0;
}

}  // namespace tessera::infer
