// Running a piece of a call again in the backward pass, so that its activations need not be kept
// until then (gradient checkpointing: Chen et al. 2016, arXiv:1604.06174).
//
// A region is a body x -> y with the weights that it reads. Everything else it reads is in the
// context, which the region keeps as it was; random numbers are counter-based, so a second run
// draws the same. Gradients leave a body in three ways only, and a region has an output for each:
// y, losses (Context::add_loss) and values for later layers (Context::values). Discrete choices
// (the buckets of a hash) must not depend on the rounding of a recomputed input: a body makes them
// by chosen().
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "tessera/nn/parts.h"

namespace tessera::nn {

/// A builder that notes every weight that it hands out.
Builder noting(const Builder& builder, std::shared_ptr<std::vector<WeightPtr>> list);

/// What `make` gives; in a second run, what it gave in the first.
Tensor chosen(Context& context, const std::function<Tensor()>& make);

/// Throws Error(usage) in a backward pass that records a graph of its own.
void require_first_derivative();

/// What the regions of a call share.
struct Recomputation {
  std::shared_ptr<const Batch> batch;  // copies that outlive the call
  std::shared_ptr<const Encoded> encoded;
  const Batch* batch_of = nullptr;  // what they are copies of
  const Encoded* encoded_of = nullptr;
  std::shared_ptr<struct Choices> choices;  // of the region being run
};

class CheckpointedRegion {
 public:
  using Body = std::function<Tensor(const Tensor& x, Context& context)>;

  /// Runs `body`, which must outlive the gradients, for the first time and drops its graph.
  CheckpointedRegion(Body body,
                     std::span<const WeightPtr> weights,
                     const Tensor& x,
                     Context& context);

  /// Tensors other than x that gradients reach, in the order of Gradients::inputs.
  const std::vector<Tensor>& inputs() const { return inputs_; }
  /// y of the first run, without a gradient; until the outputs are taken.
  const Tensor& value() const { return outputs_.front(); }
  /// What the first run gave, without gradients: y, then what it wrote into the context. Taken
  /// once.
  std::vector<Tensor> take_outputs() { return std::move(outputs_); }
  /// Hands `outputs` (as taken, with gradients) to the context.
  void publish(std::span<const Tensor> outputs, Context& context) const;

  struct Gradients {
    Tensor y;  // the value, once more
    Tensor x;
    std::vector<Tensor> inputs;  // undefined where nothing was read
  };
  /// Runs again from x, and back from the gradients of the outputs.
  Gradients again(const Tensor& x, std::span<const Tensor> gradients) const;

 private:
  struct Written;
  struct Run;
  Run run(const Tensor& x, Context& context) const;

  Body body_;
  std::shared_ptr<const Batch> batch_;
  std::shared_ptr<const Encoded> encoded_;
  Context frozen_;
  std::vector<Tensor> inputs_, outputs_;
  size_t n_weights_ = 0;                               // the first of the inputs
  std::vector<std::pair<bool, std::string>> written_;  // whether it is a loss, and its name
  std::vector<Tensor> choices_;
};

/// body(x), of which only x is kept for the backward pass. Without gradients simply body(x).
Tensor recomputed(CheckpointedRegion::Body body,
                  std::span<const WeightPtr> weights,
                  const Tensor& x,
                  Context& context);

}  // namespace tessera::nn
