// Guesses by the model's own predictors (model/predictor_spec.h), out of the hidden states that it
// makes anyway: predictor k guesses the token k + 2 places behind the last one that was read.
// Gloeckle et al. 2024, arXiv:2404.19737, sec. 3.2; DeepSeek-AI 2024, arXiv:2412.19437, sec. 2.2.
#pragma once

#include <map>
#include <vector>

#include "tessera/infer/speculation/draft_model.h"

namespace tessera::infer {

class MtpDraft {
 public:
  /// Throws Error(usage) for a model without predictors.
  MtpDraft(const model::Model& model, const CancelToken* cancel);

  /// Hidden states [n, D] of a row's tokens from number `begin` on, which are certain. A row that
  /// misses some begins anew behind them: its guesses are worse then, not wrong.
  void on_hidden(size_t row, int64_t begin, const Tensor& hidden_ND);
  /// At most one guess a predictor for each of them, none for a row whose last token but one was
  /// not heard. Calls of a predictor have at most `budget` tokens.
  std::vector<DraftTree> draft(const std::vector<DraftModel::Ask>& asks, int64_t budget);
  void drop(size_t row);

 private:
  /// What one predictor has read of a row, and what it has still to read.
  struct Own {
    int64_t read = 0;  // tokens in its state
    Tensor waiting;    // [n, D]: what it reads of the tokens behind them; may be undefined
    int64_t left() const { return waiting.defined() ? waiting.size(0) : 0; }
  };
  struct Row {
    int64_t slot = 0;   // in the states
    int64_t begin = 0;  // the first token heard
    int64_t heard = 0;  // tokens
    std::vector<Own> predictors;
  };
  /// One row's share of a call.
  struct Part {
    Row* row;
    const std::vector<int64_t>* tokens;  // with its guesses so far
    Tensor read_MD;
    bool pending;
  };
  /// Rows [M, D] that predictor k makes, part by part.
  std::vector<Tensor> call(size_t k, const std::vector<Part>& parts);
  void wait(Own& own, const Tensor& hidden_ND);
  bool chained(size_t k) const;
  /// Places between a token whose hidden state predictor k reads and the last one that it has to
  /// know.
  int64_t reach(size_t k) const;

  const model::Model& model_;
  const CancelToken* cancel_;
  std::vector<model::State> empty_, states_;  // by predictor; empty_: of one row
  std::map<size_t, Row> rows_;
};

}  // namespace tessera::infer
