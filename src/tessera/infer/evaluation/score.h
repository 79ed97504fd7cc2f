// Log-likelihood of target tokens: the measure of every evaluation.
#pragma once

#include "tessera/infer/sampling/logprobs.h"
#include "tessera/model/model.h"

namespace tessera::infer {

/// Sums over targets.
struct Score {
  double nats = 0;      // sum of -ln p(target)
  int64_t hits = 0;     // targets that are the most likely token (top-1)
  int64_t targets = 0;  // number of targets
  Score& operator+=(const Score& other);
};

/// Logits per row: the width of the model's head, which may differ from the vocabulary.
int64_t head_width(const model::ModelSpec& spec);

/// Indices of the targets that are not negative.
Tensor rows_with_targets(const Tensor& targets_N);

/// Score of hidden_ND [N, D] over the rows whose target is not negative (int64 [N] below
/// head_width()), in double. A row's result depends neither on the other rows nor on the number of
/// threads.
Score score(const model::Model& model, const Tensor& hidden_ND, const Tensor& targets_N);

/// Score of rows that arrive in pieces: the result does not depend on the pieces. Buffers a bounded
/// number of rows. Used by one thread.
class Scorer {
 public:
  /// The model must outlive it. top: number of most likely tokens to return for each target.
  explicit Scorer(const model::Model& model, int64_t top = 0);
  /// Adds rows, as score() takes them.
  void add(const Tensor& hidden_ND, const Tensor& targets_N);
  /// Total of all rows. log_p: ln p(target) of each; top: see the constructor.
  Score finish(std::vector<double>* log_p = nullptr,
               std::vector<std::vector<TokenLogprob>>* top = nullptr);

 private:
  void score_waiting();

  const model::Model* model_;
  int64_t at_once_ = 0, waiting_ = 0, most_likely_ = 0;
  std::vector<Tensor> hidden_, targets_;  // buffered rows
  Score sum_;
  std::vector<double> log_p_;
  std::vector<std::vector<TokenLogprob>> top_;
};

/// Sum of -ln p(target) over rows of logits, in double.
double nll_sum(const Tensor& logits_NC, const Tensor& targets_N);

/// Sum in order, in double.
double sum_in_order(const Tensor& values);

}  // namespace tessera::infer
