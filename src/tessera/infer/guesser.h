// Where the guesses of speculation come from: a draft model, or the text itself.
#pragma once

#include <optional>

#include "tessera/infer/draft.h"

namespace tessera::infer {

/// Several tokens per pass of the model: cheap guesses are fed together, and as many are kept as
/// the model itself would have chosen. The text is that of plain generation, token for token,
/// sampled or not: what is chosen depends on logits, seed and position alone. Leviathan et al.
/// 2022, arXiv:2211.17192; look-up: Saxena 2023.
struct Speculation {
  const model::Model* draft = nullptr;  // a smaller model with the same tokens guesses
  int64_t lookup =
      0;  // or: what followed the last (at most so many) tokens where they stood before
  int64_t guesses = 4;  // per pass
  bool on() const { return draft != nullptr || lookup > 0; }
  /// Tokens that a state leaves pending.
  int64_t max_pending() const { return on() ? guesses + 1 : 0; }
};

class Guesser {
 public:
  /// Throws Error(usage) when `how` asks for what cannot be with this model.
  Guesser(const model::Model& model, const Speculation& how, const CancelToken* cancel);

  /// Guesses for what follows each of the rows.
  std::vector<std::vector<int64_t>> guess(const std::vector<Draft::Ask>& asks, int64_t budget);
  /// How many of the row's guesses were right; told for every row that got some.
  void keep(size_t row, int64_t right);
  /// The row is gone; its number may come again.
  void drop(size_t row);

 private:
  Speculation how_;
  std::optional<Draft> draft_;
};

}  // namespace tessera::infer
