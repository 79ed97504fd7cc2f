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

  /// The state that a call continues and whether it leaves its tokens pending, for the branches to
  /// reach through the context.
  static void continue_from(nn::Context& context, State* state, bool pending);
  /// Hidden states of the context's batch after the final norm, [N, D].
  Tensor forward(nn::Context& context) const;

 private:
  struct Group {
    std::unique_ptr<nn::Residual> residual;
    std::vector<nn::Branch> branches;
  };
  struct Call {
    State* state = nullptr;
    bool pending = false;
  };
  void build_layer(int64_t layer, const nn::Builder& builder, size_t& state_index);

  const ModelSpec& spec_;
  std::unique_ptr<nn::Embed> embed_;
  std::vector<std::vector<Group>> layers_;
  std::unique_ptr<nn::Norm> final_norm_;
};

}  // namespace tessera::model
