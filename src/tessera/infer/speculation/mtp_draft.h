// Self-speculative decoding with the model's own multi-token-prediction heads
// (model/predictor_spec.h), from the hidden states that the model computes anyway. Predictor k
// drafts the token k + 2 positions after the last token fed. Gloeckle et al. 2024,
// arXiv:2404.19737, sec. 3.2; DeepSeek-AI 2024, arXiv:2412.19437, sec. 2.2.
#pragma once

#include <map>
#include <vector>

#include "tessera/infer/speculation/draft_model.h"

namespace tessera::infer {

class MtpDraft {
 public:
  /// Throws Error(usage) for a model without predictors.
  MtpDraft(const model::Model& model, const CancelToken* cancel);

  /// Receives hidden states [n, D] of a row's committed tokens from number `begin` on. After a gap
  /// a row starts again there: its draft tokens are then less often accepted, never wrong.
  void on_hidden(size_t row, int64_t begin, const Tensor& hidden_ND);
  /// At most one draft token per predictor and row; none for a row whose last but one token's
  /// hidden state is missing. Calls of a predictor have at most `budget` tokens.
  std::vector<DraftTree> draft(const std::vector<DraftModel::Ask>& asks, int64_t budget);
  void drop(size_t row);

 private:
  /// How far one predictor has processed a row.
  struct Own {
    int64_t read = 0;  // tokens in its state
    Tensor waiting;    // [n, D], its input for the tokens after them; may be undefined
    int64_t left() const { return waiting.defined() ? waiting.size(0) : 0; }
  };
  struct Row {
    int64_t slot = 0;      // in the states
    int64_t begin = 0;     // the first token with a hidden state
    int64_t n_tokens = 0;  // number of tokens
    std::vector<Own> predictors;
  };
  /// One row's share of a call.
  struct RowShare {
    Row* row;
    const std::vector<int64_t>* tokens;  // with its draft tokens so far
    Tensor read_MD;
    bool pending;
  };
  /// Output rows [M, D] of predictor k, part by part.
  std::vector<Tensor> call(size_t k, const std::vector<RowShare>& parts);
  void wait(Own& own, const Tensor& hidden_ND);
  bool chained(size_t k) const;
  /// Number of positions from a token whose hidden state predictor k reads to the last token that
  /// it must know.
  int64_t reach(size_t k) const;

  const model::Model& model_;
  const CancelToken* cancel_;
  std::vector<model::State> empty_, states_;  // by predictor; empty_: of one row
  std::map<size_t, Row> rows_;
};

}  // namespace tessera::infer
