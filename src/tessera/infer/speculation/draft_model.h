// Draft model of speculative decoding: a smaller model, or the first layers of the model itself.
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
  /// Throws Error(usage) for a model that cannot continue from a state. most: draft tokens per row
  /// and call. layers: 0 = all; otherwise the first layers, followed by the final norm and the
  /// head.
  DraftModel(const model::Model& model,
             int64_t most,
             const CancelToken* cancel,
             int64_t layers = 0);

  /// A row that needs draft tokens.
  struct Ask {
    size_t row = 0;
    const Sequence* sequence = nullptr;
    int64_t count = 0;  // draft positions
    /// Samples a token from logits [C], after the given tokens.
    std::function<int64_t(std::span<const float> logits, const std::vector<int64_t>& tokens)>
        choose = {};
    int64_t width =
        1;  // candidates per position; above 1 the result is a tree of at most count x width nodes
    std::span<const int64_t> predicted = {};  // predicted output, for prompt lookup
  };
  /// Draft tokens for each row: fewer than `count` at the end of the draft model's positions, none
  /// if its encoder cannot hold the source. Model calls have at most `budget` tokens. keep() must
  /// be called for every row that got draft tokens before the next call.
  std::vector<DraftTree> draft(const std::vector<Ask>& asks, int64_t budget);
  /// Reports the accepted draft tokens of a row.
  void keep(size_t row, const std::vector<int64_t>& ids);
  void drop(size_t row);

 private:
  /// True if the draft model's encoder has positions for the source.
  bool reads(const Sequence& sequence) const;

  const model::Model& model_;
  Batcher batcher_;
  std::map<size_t, size_t> slots_;                 // batcher slot by row
  std::map<size_t, std::vector<int64_t>> chains_;  // draft tokens that it was fed, by row
  int64_t limit_ = 0;                              // max. tokens of a row, 0 = no limit
};

}  // namespace tessera::infer
