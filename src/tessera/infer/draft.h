// A smaller model that guesses what a larger one will say.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "tessera/model/model.h"

namespace tessera::infer {

class Draft {
 public:
  /// Chooses a token of `row` from logits, after the given tokens.
  using Choose = std::function<int64_t(
      size_t row, std::span<const float> logits, const std::vector<int64_t>& tokens)>;

  struct Options {
    int64_t most = 4;              // guesses per row and call
    int64_t prefill_chunk = 1024;  // tokens per call
    const CancelToken* cancel = nullptr;
    std::vector<int64_t> prefixes = {};  // Sequence::prefix of every row; none = not said
    std::vector<std::vector<int64_t>> sources = {};  // Sequence::source, beside an encoder
  };

  /// Throws Error(usage) for a model that cannot continue from a state.
  Draft(const model::Model& model, size_t rows, const Options& options);

  /// counts[row] guesses for what follows sequences[row], for every row with a count; fewer where
  /// the draft's positions end, none where a source is longer than those of its encoder. Every row
  /// guessed for is told with keep() how it went before the next call.
  std::vector<std::vector<int64_t>> guess(std::vector<std::vector<int64_t>> sequences,
                                          std::vector<int64_t> counts,
                                          const Choose& choose);
  /// The first n guesses of the row were right.
  void keep(size_t row, int64_t n);

 private:
  /// Whether the draft has positions for what its encoder reads of this row.
  bool reads(size_t row) const;
  /// Logits after the last of the tokens of every row.
  Tensor feed(const std::vector<size_t>& rows,
              const std::vector<std::vector<int64_t>>& tokens,
              bool pending);
  nn::Encoded encode(const std::vector<size_t>& rows) const;

  const model::Model& model_;
  Options options_;
  model::State state_;
  int64_t limit_ = 0;  // tokens of a row, 0 = any
};

}  // namespace tessera::infer
