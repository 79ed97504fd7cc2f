// A smaller model that guesses what a larger one will say: another one, or its first layers.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "tessera/infer/engine/batcher.h"

namespace tessera::infer {

class DraftModel {
 public:
  /// Throws Error(usage) for a model that cannot continue from a state. most: guesses per row and
  /// call. layers: 0 = all; else the first ones, with final norm and head behind them.
  DraftModel(const model::Model& model,
             int64_t most,
             const CancelToken* cancel,
             int64_t layers = 0);

  /// A row that wants guesses.
  struct Ask {
    size_t row = 0;
    const Sequence* sequence = nullptr;
    int64_t count = 0;  // of places ahead
    /// Chooses a token from logits, after the given tokens.
    std::function<int64_t(std::span<const float> logits, const std::vector<int64_t>& tokens)>
        choose = {};
    int64_t width = 1;  // candidates for each: a tree of at most count x width where there are more
    std::span<const int64_t> predicted = {};  // what the row may come to say, for a look-up
  };
  /// Guesses for each of them: fewer than asked for where the draft's positions end, none where a
  /// source is longer than those of its encoder. Calls of the draft have at most `budget` tokens.
  /// Every row that got some is told with keep() how it went before the next call.
  std::vector<DraftTree> draft(const std::vector<Ask>& asks, int64_t budget);
  /// These followed, as far as they were guessed.
  void keep(size_t row, const std::vector<int64_t>& ids);
  void drop(size_t row);

 private:
  /// Whether the draft has positions for what its encoder reads.
  bool reads(const Sequence& sequence) const;

  const model::Model& model_;
  Batcher batcher_;
  std::map<size_t, size_t> slots_;                 // of the batcher, by row
  std::map<size_t, std::vector<int64_t>> chains_;  // what the draft itself went on with, by row
  int64_t limit_ = 0;                              // tokens of a row, 0 = any
};

}  // namespace tessera::infer
