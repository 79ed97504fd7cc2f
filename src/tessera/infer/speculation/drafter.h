// Where the guesses of speculation come from: a draft model, the model itself, or the text.
#pragma once

#include <optional>

#include "tessera/infer/speculation/draft_model.h"
#include "tessera/infer/speculation/mtp_draft.h"

namespace tessera::infer {

/// Several tokens per pass of the model: cheap guesses are fed together, and as many are kept as
/// the model itself would have chosen. The text is that of plain generation, token for token,
/// sampled or not: what is chosen depends on logits, seed and position alone (draft_tree.h).
/// Leviathan et al. 2022, arXiv:2211.17192; look-up: Saxena 2023.
struct Speculation {
  const model::Model* draft = nullptr;  // a smaller model with the same tokens guesses
  int64_t lookup =
      0;  // or: what followed the last (at most so many) tokens where they stood before
  int64_t draft_tokens = 4;  // places ahead, per pass
  bool predictors = false;   // or: the model's own predictors, at most one guess each
  /// Or: its first layers, from which final norm and head give logits as they do from the last.
  /// Elhoushi et al. 2024, arXiv:2404.16710, sec. 3.3.
  int64_t exit_layer = 0;
  /// Candidates for each place: a tree, whose branches are verified in one pass.
  int64_t tree_width = 1;
  /// As many guesses as pay, at most `guesses` (draft_length.h).
  bool adaptive = false;
  bool on() const { return draft != nullptr || lookup > 0 || predictors || exit_layer > 0; }
  /// Tokens that a state leaves pending.
  int64_t max_pending() const { return on() ? draft_tokens * tree_width + 1 : 0; }
};

/// Why branches of guesses cannot be verified side by side in this model: which part has one past
/// alone. "" where they can.
std::string no_branches_reason(const model::ModelSpec& spec);

class Drafter {
 public:
  /// Throws Error(usage) when `how` asks for what cannot be with this model.
  Drafter(const model::Model& model, const Speculation& how, const CancelToken* cancel);

  /// Places ahead that are guessed for at most.
  int64_t most() const { return most_; }
  /// Hidden states of a row's tokens from number `begin` on, as they are made.
  void on_hidden(size_t row, int64_t begin, const Tensor& hidden_ND);
  /// Guesses for what follows each of the rows.
  std::vector<DraftTree> draft(const std::vector<DraftModel::Ask>& asks, int64_t budget);
  /// The row's guesses that were right; told for every row that got some.
  void keep(size_t row, const std::vector<int64_t>& ids);
  /// The row is gone; its number may come again.
  void drop(size_t row);

 private:
  Speculation how_;
  int64_t most_;
  std::optional<DraftModel> draft_;
  std::optional<MtpDraft> self_;
};

}  // namespace tessera::infer
