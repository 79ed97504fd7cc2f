// One stack with its weights: embedding, layers, final norm. What a call needs besides is in the
// context.
#pragma once

#include "tessera/model/model_spec.h"
#include "tessera/model/state.h"
#include "tessera/model/step_plan.h"
#include "tessera/nn/parts.h"

namespace tessera::model {

class Stack {
 public:
  /// `spec` must outlive the stack.
  Stack(const ModelSpec& spec, const nn::WeightSource& source);

  const ModelSpec& spec() const { return spec_; }
  /// Most ids before a token's own that its parts read.
  int64_t ids_before() const { return ids_before_; }
  /// What the context's batch gives the layers to read, [N, D].
  Tensor embedded(nn::Context& context) const;
  /// Hidden states after the final norm, [N, ModelSpec::width_out()], of what the layers read; of
  /// the first `layers` of them alone where that is not 0.
  Tensor forward(const Tensor& x_ND, nn::Context& context, int64_t layers = 0) const;
  Tensor forward(nn::Context& context, int64_t layers = 0) const {
    return forward(embedded(context), context, layers);
  }
  /// The final norm of what a layer hands on.
  Tensor normed(const Tensor& x_ND, const nn::Context& context) const {
    return final_norm_ ? final_norm_->forward(x_ND, context) : x_ND;
  }
  /// What its layers offer for calls of few tokens.
  const StepPlan& steps() const { return steps_; }

 private:
  struct Group {
    std::unique_ptr<nn::Residual> residual;
    std::vector<nn::Branch> branches;
    bool enters = false, leaves = false;  // GroupSpec::Run
  };
  struct Layer {
    std::vector<Group> groups;
    std::unique_ptr<nn::Depth> depth;           // may be null
    bool begins_loop = true, ends_loop = true;  // DepthConfig::loop
    std::string depth_name;                     // of its input and output where somebody looks on
    int64_t state = -1;  // index of a state that its branches keep, -1 = none do
    std::vector<nn::WeightPtr> weights;
    bool recomputes = false;  // its residuals run their branches again by themselves
  };
  /// Layer `index`, on the tokens that its depth chooses.
  nn::Stream compute(size_t index, nn::Stream stream, nn::Context& context) const;
  /// The same, keeping for the backward pass what goes in alone.
  nn::Stream recomputed(size_t index, const nn::Stream& stream, nn::Context& context) const;
  nn::Stream run(const Layer& layer, nn::Stream stream, nn::Context& context) const;
  /// Returns what its parts offer for calls of few tokens.
  StepPlan::Layer build_layer(int64_t layer, const nn::Builder& builder, size_t& state_index);

  const ModelSpec& spec_;
  int64_t ids_before_;
  std::unique_ptr<nn::Embed> embed_;
  bool embed_has_state_ = false;
  std::vector<Layer> layers_;
  StepPlan steps_;  // of calls of few tokens
  std::unique_ptr<nn::Norm> final_norm_;
};

}  // namespace tessera::model
