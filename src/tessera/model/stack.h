// One stack with its weights: embedding, layers, final norm. Everything else of a call is in the
// context.
#pragma once

#include "tessera/model/model_spec.h"
#include "tessera/model/state.h"
#include "tessera/model/step_plan.h"
#include "tessera/nn/parts.h"

namespace tessera::model {

class Stack {
 public:
  /// `spec` must outlive the stack. `products`: those of the calls without gradients that its
  /// decoding steps will serve (Model::products_of).
  Stack(const ModelSpec& spec,
        const nn::WeightSource& source,
        const ops::ProductSettings& products = {});

  const ModelSpec& spec() const { return spec_; }
  /// Max. number of ids before a token that its parts read.
  int64_t ids_before() const { return ids_before_; }
  /// The input of the layers for the context's batch, [N, D].
  Tensor embedded(nn::Context& context) const;
  /// Hidden states after the final norm, [N, ModelSpec::width_out()], for layer inputs x_ND; with
  /// `layers` other than 0, after that many layers.
  Tensor forward(const Tensor& x_ND, nn::Context& context, int64_t layers = 0) const;
  Tensor forward(nn::Context& context, int64_t layers = 0) const {
    return forward(embedded(context), context, layers);
  }
  /// The final norm of a layer's output.
  Tensor normed(const Tensor& x_ND, const nn::Context& context) const {
    return final_norm_ ? final_norm_->forward(x_ND, context) : x_ND;
  }
  /// Decoding steps of its layers, for calls of few tokens.
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
    std::string depth_name;                     // name of its input and output for probes
    int64_t state = -1;                         // index of a state of its branches, -1 = none
    std::vector<nn::WeightPtr> weights;
    bool recomputes = false;  // its residuals recompute their branches themselves
  };
  /// Computes layer `index`, on the tokens that its depth selects.
  nn::Stream compute(size_t index, nn::Stream stream, nn::Context& context) const;
  /// The same, storing only the input for the backward pass.
  nn::Stream recomputed(size_t index, const nn::Stream& stream, nn::Context& context) const;
  nn::Stream run(const Layer& layer, nn::Stream stream, nn::Context& context) const;
  /// Returns the decoding steps of its parts.
  StepPlan::Layer build_layer(int64_t layer,
                              const nn::Builder& builder,
                              const ops::ProductSettings& products,
                              size_t& state_index);

  const ModelSpec& spec_;
  int64_t ids_before_;
  std::unique_ptr<nn::Embed> embed_;
  bool embed_has_state_ = false;
  std::vector<Layer> layers_;
  StepPlan steps_;  // for calls of few tokens
  std::unique_ptr<nn::Norm> final_norm_;
};

}  // namespace tessera::model
