// The decoding step of a part that chooses keys (parts.h, Select), within that of the mixer whose
// keys it chooses (decode_step.h).
#pragma once

#include <memory>

#include "tessera/nn/decode_step.h"
#include "tessera/nn/step_products.h"

namespace tessera::nn {

/// In one call.
class SelectCall {
 public:
  virtual ~SelectCall() = default;
  /// Called once on the calling thread, from the mixer's StepCall::enter().
  virtual void enter(Context&) {}
  /// The part's products, on every thread; waits at the end. x_ND: the mixer's input; latent_NQ:
  /// what its queries are projected from; all rows are written. `memory`, here and below, has
  /// floats() and is aligned to a cache line.
  virtual void project(Team& team, const float* x_ND, const float* latent_NQ, float* memory) = 0;
  /// Then of every segment, on one thread: keeps what the part holds of its tokens.
  virtual void keep(size_t segment, float* memory) = 0;
  /// Chooses, on every thread, which waits before and before it reads keys().
  virtual void choose(Team& team, float* memory) = 0;
  /// As Select::choose() gives them, known after enter(), written by run(); undefined: every query
  /// has all keys before it.
  virtual const Tensor& keys() const = 0;
  int64_t floats() const { return memory_.floats(); }

 protected:
  StepMemory memory_;
};

class SelectStep {
 public:
  virtual ~SelectStep() = default;
  /// As PartStep::begin(); the rows' entries from `slot` on are the part's.
  virtual std::unique_ptr<SelectCall> begin(Context& context,
                                            const StateRows& rows,
                                            size_t slot) const = 0;
  /// Length of a document up to which every query has all keys before it.
  virtual int64_t dense_length() const = 0;
};

/// A part that has a step.
class SteppedSelect : public Select {
 public:
  /// For queries and keys of `position`. Null if it does not support an option of the config;
  /// `weights` are the mixer's.
  virtual std::shared_ptr<const SelectStep> step(StepWeights& weights,
                                                 const Position& position) const = 0;
};

}  // namespace tessera::nn
