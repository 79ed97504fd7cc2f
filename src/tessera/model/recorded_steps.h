// Decoding steps on a device that are recorded once and replayed: one launch of a graph instead of
// one for each operation (CUDA graphs, ops/graph.h).
//
// A recorded step has fixed shapes. The entries and states of its rows are in memory of a fixed
// number of slots and tokens (a static KV cache), one row in a slot; rows of a State move there
// (State::settle) and remain ordinary rows, which calls of any length continue and which are
// copied, rolled back and saved. Ids and positions are tensors that are filled before a replay.
// Slots of a graph without a row in the call append an entry after all others, which no row reads,
// and store no states.
#pragma once

#include <any>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tessera/model/model.h"
#include "tessera/model/state.h"
#include "tessera/ops/graph.h"

namespace tessera::model {

class RecordedSteps {
 public:
  /// "" if steps of this model can be recorded on its device; otherwise the reason.
  static std::string unavailable_reason(const Model& model, spec::KvType type);

  /// Of a model for which there is no reason, which must outlive it; for one state.
  explicit RecordedSteps(const Model& model);
  ~RecordedSteps();

  /// Model::hidden() of a batch of one token per row, by a replay; counts the tokens in the state.
  /// Undefined, and no token is computed, for other batches, more than kMostRows rows, pending
  /// tokens, where the memory would be more than half of what is free on the device, and once a
  /// step could not be recorded.
  Tensor hidden(const nn::Batch& batch, State& state);

  static constexpr int64_t kMostRows = 32;
  /// Graphs that were recorded so far.
  int64_t recorded() const { return n_recorded_; }
  int64_t replayed() const { return n_replayed_; }
  /// Why a step could not be recorded, "" = all could.
  const std::string& failure() const { return failure_; }

 private:
  struct Memory;
  struct Step;
  bool serves(const nn::Batch& batch, const State& state) const;
  /// Makes room for slots and tokens; false if there is not enough memory.
  bool make_room(int64_t slots, int64_t tokens, State& state);
  /// Null if it cannot be recorded.
  Step* step_of(int64_t slots, const State& state);
  void record(Step& step, int64_t slots, const State& state);

  const Model& model_;
  std::unique_ptr<Memory> memory_;
  std::map<int64_t, std::unique_ptr<Step>> steps_;  // by slots
  std::map<std::string, std::any> constants_;
  int64_t n_recorded_ = 0, n_replayed_ = 0;
  std::string failure_;
};

}  // namespace tessera::model
