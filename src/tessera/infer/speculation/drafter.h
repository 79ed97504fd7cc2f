// Sources of draft tokens: a draft model, the model itself, or prompt lookup.
#pragma once

#include <optional>

#include "tessera/infer/speculation/draft_model.h"
#include "tessera/infer/speculation/mtp_draft.h"

namespace tessera::infer {

/// Speculative decoding: several tokens per model call. Draft tokens are fed together, and those
/// that the model itself chooses are accepted. The text equals that of plain decoding, token for
/// token, greedy or sampled, because a choice depends on logits, seed and position only
/// (draft_tree.h). Leviathan et al. 2022, arXiv:2211.17192; prompt lookup: Saxena 2023.
struct Speculation {
  const model::Model* draft = nullptr;  // draft model with the same vocabulary
  int64_t lookup = 0;        // or: prompt lookup with n-grams of at most this many tokens; 0 = off
  int64_t draft_tokens = 4;  // draft positions per model call
  bool predictors = false;   // or: the model's own MTP heads, one draft token each
  /// Or early exit: its first layers, followed by final norm and head. Elhoushi et al. 2024,
  /// arXiv:2404.16710, sec. 3.3 (LayerSkip).
  int64_t exit_layer = 0;
  /// Candidates per position: above 1 a tree, verified in one call.
  int64_t tree_width = 1;
  /// Adaptive draft length, at most `draft_tokens` (draft_length.h).
  bool adaptive = false;
  bool on() const { return draft != nullptr || lookup > 0 || predictors || exit_layer > 0; }
  /// Max. pending tokens of a state.
  int64_t max_pending() const { return on() ? draft_tokens * tree_width + 1 : 0; }
};

/// The part of this model that prevents tree verification, because its state has one past only. ""
/// if trees can be verified.
std::string no_branches_reason(const model::ModelSpec& spec);

/// Drafts for the rows of one engine; owns the draft model's state of each row until drop(). Used
/// by one thread at a time. The target model and the draft model must outlive it. Draft tokens
/// change the speed only, never the text. draft() throws Error(cancelled) and errors of the draft
/// model.
class Drafter {
 public:
  /// Throws Error(usage) if the model does not support `how`.
  Drafter(const model::Model& model, const Speculation& how, const CancelToken* cancel);

  /// Max. number of draft positions.
  int64_t most() const { return most_; }
  /// Receives hidden states [n, D] of a row's tokens from number `begin` on, as they are computed.
  void on_hidden(size_t row, int64_t begin, const Tensor& hidden_ND);
  /// Draft tokens after each row.
  std::vector<DraftTree> draft(const std::vector<DraftModel::Ask>& asks, int64_t budget);
  /// Reports the accepted draft tokens of a row, for every row that got some.
  void keep(size_t row, const std::vector<int64_t>& ids);
  /// Frees a row; its number may be used again.
  void drop(size_t row);

 private:
  Speculation how_;
  int64_t most_;
  std::optional<DraftModel> draft_;
  std::optional<MtpDraft> self_;
};

}  // namespace tessera::infer
