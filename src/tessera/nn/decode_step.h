// What a part may offer in addition to its tensor path: a step for calls of few tokens, as in
// decoding, on float32 rows in memory. What tensors cost (allocation, views, dispatch, a parallel
// region for each product) is a third of such a call of a small model. model/step_plan.h strings
// the steps of neighbouring layers together in one parallel region; where a part offers none, or a
// step does not take a call, the tensor path serves.
//
// A step gives the bits of the tensor path: the same kernels in the same order. It is next to
// the code whose options it must honour, and is offered only where it knows all of them
// (others_at_default).
//
// Threads: run() is called by all threads of a team at once; they share out rows, heads or columns
// and wait() for each other. Rows are those of the call's tokens, [N, width]; a thread's own are
// team.share(N). When a part's run() begins, every thread has written its own rows of x, and the
// others may still be at theirs: a part waits before it reads other rows, and before it writes to
// y. When it ends, y may still be under way: who reads y waits first.
//
// A step reads the part that offers it, which outlives it.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <span>
#include <vector>

#include "tessera/base/team.h"
#include "tessera/nn/context.h"
#include "tessera/nn/parts.h"
#include "tessera/spec/fields.h"

namespace tessera::nn {

/// What a step needs of the memory that the steps of a call use one after the other: pieces that
/// begin at cache lines, by their offsets in floats.
class StepMemory {
 public:
  /// Where `floats` more lie.
  int64_t take(int64_t floats) {
    const int64_t at = floats_;
    floats_ += (floats + kLine - 1) / kLine * kLine;
    return at;
  }
  int64_t floats() const { return floats_; }

 private:
  static constexpr int64_t kLine = 16;
  int64_t floats_ = 0;
};

/// A norm's.
class NormStep {
 public:
  virtual ~NormStep() = default;
  /// Rows of `width` numbers, on this thread; y may be x.
  virtual void operator()(const float* x, int64_t rows, int64_t width, float* y) const = 0;
};

/// A router's step.
class RouterStep {
 public:
  virtual ~RouterStep() = default;
  /// Experts of a token.
  virtual int64_t choices() const = 0;
  /// Floats of memory for n tokens.
  virtual int64_t floats(int64_t n) const = 0;
  /// Experts and weights of n tokens (Routing), [n, choices()], without losses and statistics.
  /// Every thread has written its own rows of x_ND when this begins, and those of both outputs when
  /// it ends.
  virtual void run(Team& team,
                   int64_t n,
                   const float* x_ND,
                   int64_t* expert_NK,
                   float* weight_NK,
                   float* memory) const = 0;
};

/// A part's step in one call.
class StepCall {
 public:
  virtual ~StepCall() = default;
  /// Called once on the calling thread when run() is certain to follow, in the order of the layers:
  /// publishes values for later layers (Context::values) and finds those of earlier ones.
  virtual void enter(Context&) {}
  /// x_ND -> y_ND, other memory than x; on every thread of the team, see above. `memory` has
  /// floats() and is aligned to a cache line.
  virtual void run(Team& team, const float* x_ND, float* y_ND, float* memory) = 0;
  int64_t floats() const { return memory_.floats(); }

 protected:
  StepMemory memory_;
};

/// That of a mixer or feed-forward layer.
class PartStep {
 public:
  virtual ~PartStep() = default;
  /// Of the context's batch, few tokens that continue a state, without gradients; `rows` are null
  /// for a part without a state. Null where the step does not take this call; changes nothing.
  /// Between this and run() the rows' calls begin (RowState::begin_call), after run() they end
  /// without inputs: a part whose state has fixed tensors takes no call whose tokens stay pending.
  /// With context.groups, of rows sorted by expert: their last offset is now the largest number of
  /// rows, and run() reads the offsets as they are then.
  virtual std::unique_ptr<StepCall> begin(Context& context, const StateRows* rows) const = 0;
};

/// What a residual knows of a branch whose part and norms offer steps.
struct BranchSteps {
  std::vector<std::shared_ptr<const NormStep>> norms;  // parallel to Branch::norms; null: no norm
  WeightPtr gain;                                      // Branch::gain
  WeightPtr sum_gain;                                  // Branch::sum_gain
};

/// A residual's, of rows of D numbers.
class ResidualStep {
 public:
  virtual ~ResidualStep() = default;
  /// Floats of memory for n tokens.
  virtual int64_t floats(int64_t n) const = 0;
  /// What the branches' parts make of x_ND joins it; `parts` are their calls and use
  /// `part_memory`. A thread's own rows of x are written when this begins and when it ends.
  virtual void run(Team& team,
                   int64_t n,
                   std::span<StepCall* const> parts,
                   float* x_ND,
                   float* memory,
                   float* part_memory) const = 0;
};

/// Whether all options of `config` other than `served` are at their defaults, so that an option
/// that a step does not implement is never ignored.
template <class C>
bool others_at_default(const C& config, std::initializer_list<std::string_view> served) {
  static const spec::Json plain = spec::dump_struct(C());
  const spec::Json own = spec::dump_struct(config);
  for (const auto& [key, value] : own.items())
    if (std::find(served.begin(), served.end(), key) == served.end() && value != plain.at(key))
      return false;
  return true;
}

}  // namespace tessera::nn
