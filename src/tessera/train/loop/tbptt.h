// Training and evaluating over segments: a row of the batch goes on where it was, with the state
// that its last window left. Gradients stop between windows.
#pragma once

#include "tessera/model/model.h"
#include "tessera/train/data/packing.h"

namespace tessera::train {

/// Whether a document of `held` tokens goes on with `length` more, where it begins anew after
/// `limit` tokens; 0 = never.
inline bool fits(int64_t held, int64_t length, int64_t limit) {
  return limit == 0 || held + length <= limit;
}

/// One state per stream of consecutive windows. A document begins anew where it begins in the text,
/// where its stream begins, and where it would pass `limit` tokens.
class RecurrentStates {
 public:
  /// `limit`: tokens of a document after which its row begins anew, 0 = none.
  RecurrentStates(const model::ModelSpec& spec, int64_t streams, int64_t limit);

  int64_t streams() const { return static_cast<int64_t>(rows_.size()); }
  /// Tokens of the current document of a stream so far.
  int64_t length(int64_t stream) const { return rows_.at(static_cast<size_t>(stream)).length(0); }
  void forget(int64_t stream);

  /// The state for a call on `packed`, window w being the next of streams[w]; writes rows and
  /// starts of its pieces into `batch`.
  model::State enter(nn::Batch& batch,
                     const PackedBatch& packed,
                     const std::vector<int64_t>& streams) const;
  /// Keeps, detached, what the call left of the documents that go on.
  void leave(const model::State& state,
             const nn::Batch& batch,
             const PackedBatch& packed,
             const std::vector<int64_t>& streams);

  void save(const std::filesystem::path& file) const;
  void load(const std::filesystem::path& file);

 private:
  model::State empty() const { return {*spec_, 1}; }

  const model::ModelSpec* spec_;
  int64_t limit_;
  std::vector<model::State> rows_;  // of one row each
};

}  // namespace tessera::train
