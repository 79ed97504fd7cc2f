// One stack with its weights: embedding, layers, final norm. What a call needs besides is in the
// context.
#pragma once

#include "tessera/model/model_spec.h"
#include "tessera/model/state.h"
#include "tessera/nn/parts.h"

namespace tessera::model {

class Stack {
 public:
  /// `spec` must outlive the stack.
  Stack(const ModelSpec& spec, const nn::WeightSource& source);

  /// Hidden states of the context's batch after the final norm, [N, ModelSpec::width_out()].
  Tensor forward(nn::Context& context) const;

 private:
  struct Group {
    std::unique_ptr<nn::Residual> residual;
    std::vector<nn::Branch> branches;
    bool enters = false, leaves = false;  // GroupSpec::Run
  };
  struct Layer {
    std::vector<Group> groups;
    std::unique_ptr<nn::Depth> depth;  // may be null
    std::string depth_name;            // of its input and output where somebody looks on
    int64_t state = -1;                // index of a state that its branches keep, -1 = none do
  };
  Tensor embedded(nn::Context& context) const;
  nn::Stream run(const Layer& layer, nn::Stream stream, nn::Context& context) const;
  void build_layer(int64_t layer, const nn::Builder& builder, size_t& state_index);

  const ModelSpec& spec_;
  std::unique_ptr<nn::Embed> embed_;
  bool embed_has_state_ = false;
  std::vector<Layer> layers_;
  std::unique_ptr<nn::Norm> final_norm_;
};

}  // namespace tessera::model
