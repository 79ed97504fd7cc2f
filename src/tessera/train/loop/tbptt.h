// Truncated backpropagation through time (segment recurrence): a row continues with the state of
// its last window. Gradients stop between windows.
#pragma once

#include "tessera/model/model.h"
#include "tessera/train/data/packing.h"

namespace tessera::train {

/// True if a document of `held` tokens continues with `length` more tokens, given the `limit` after
/// which it starts again; 0 = no limit.
inline bool fits(int64_t held, int64_t length, int64_t limit) {
  return limit == 0 || held + length <= limit;
}

/// One state per stream of consecutive windows. A row starts again at the beginning of a document,
/// at the beginning of its stream, and where the document would exceed `limit` tokens.
class RecurrentStates {
 public:
  /// `limit`: max. tokens of a document before its row starts again, 0 = no limit. `device`: that
  /// of the model.
  RecurrentStates(const model::ModelSpec& spec,
                  int64_t streams,
                  int64_t limit,
                  at::Device device = at::kCPU);

  int64_t streams() const { return static_cast<int64_t>(rows_.size()); }
  /// Tokens of the current document of a stream so far.
  int64_t length(int64_t stream) const { return rows_.at(static_cast<size_t>(stream)).length(0); }
  void forget(int64_t stream);

  /// The state for a call with `packed`, where window w is the next of streams[w]; sets rows and
  /// starts of its documents in `batch`.
  model::State enter(nn::Batch& batch,
                     const PackedBatch& packed,
                     const std::vector<int64_t>& streams) const;
  /// Stores, detached, the states of documents that continue.
  void leave(const model::State& state,
             const nn::Batch& batch,
             const PackedBatch& packed,
             const std::vector<int64_t>& streams);

  void save(const std::filesystem::path& file) const;
  void load(const std::filesystem::path& file);

 private:
  model::State empty(int64_t rows = 1) const {
    return {*spec_, rows, 0, at::TensorOptions(device_).dtype(at::kFloat)};
  }

  const model::ModelSpec* spec_;
  int64_t limit_;
  at::Device device_;
  std::vector<model::State> rows_;  // one row each
};

}  // namespace tessera::train
