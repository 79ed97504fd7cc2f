// How likely a model finds tokens: what every evaluation counts, and nothing else does.
#pragma once

#include "tessera/infer/sampling/logprobs.h"
#include "tessera/model/model.h"

namespace tessera::infer {

/// Of many targets.
struct Score {
  double nats = 0;      // sum of -ln p(target)
  int64_t hits = 0;     // targets that are the most likely token
  int64_t targets = 0;  // how many there are
  Score& operator+=(const Score& other);
};

/// Numbers per row of a model's logits: the width of its head, which need not be the vocabulary.
int64_t head_width(const model::ModelSpec& spec);

/// Row numbers of `targets_N` that are not negative.
Tensor rows_with_targets(const Tensor& targets_N);

/// Over the rows of hidden_ND whose target is not negative, int64 below head_width(); in double. A
/// row's share does not turn on the other rows, nor on the number of threads.
Score score(const model::Model& model, const Tensor& hidden_ND, const Tensor& targets_N);

/// The same of rows that come by and by: nothing shows how they were cut. Holds few of them.
class Scorer {
 public:
  /// The model must outlive it. top: so many most likely tokens beside each target.
  explicit Scorer(const model::Model& model, int64_t top = 0);
  /// As score() takes them, behind those before.
  void add(const Tensor& hidden_ND, const Tensor& targets_N);
  /// Of all of them, after the last; log_p: ln p(target) of each; top: see the constructor.
  Score finish(std::vector<double>* log_p = nullptr,
               std::vector<std::vector<TokenLogprob>>* top = nullptr);

 private:
  void score_waiting();

  const model::Model* model_;
  int64_t at_once_ = 0, waiting_ = 0, most_likely_ = 0;
  std::vector<Tensor> hidden_, targets_;  // of the rows that wait
  Score sum_;
  std::vector<double> log_p_;
  std::vector<std::vector<TokenLogprob>> top_;
};

/// Sum of -ln p(target) over rows of logits, in double.
double nll_sum(const Tensor& logits_NC, const Tensor& targets_N);

/// The values one after another, in double.
double sum_in_order(const Tensor& values);

}  // namespace tessera::infer
