// Where the guesses of speculation come from: a draft model, or the text itself.
#pragma once

#include <optional>

#include "tessera/infer/draft.h"
#include "tessera/infer/generate.h"

namespace tessera::infer {

class Guesser {
 public:
  /// Throws Error(usage) when `options` ask for what cannot be with this model.
  Guesser(const model::Model& model,
          const std::vector<const Sequence*>& rows,
          const GenerateOptions& options);

  /// At most counts[row] guesses for what follows sequences[row]; none for rows without a count.
  std::vector<std::vector<int64_t>> guess(std::vector<std::vector<int64_t>> sequences,
                                          std::vector<int64_t> counts,
                                          const Draft::Choose& choose);
  /// How many of the row's guesses were right; told for every row that got some.
  void keep(size_t row, int64_t right);

 private:
  Speculation how_;
  std::optional<Draft> draft_;
};

}  // namespace tessera::infer
