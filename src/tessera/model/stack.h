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

  /// Given a branch's input and its name, what it gets instead.
  using Replace = std::function<Tensor(const std::string& name, const Tensor& x_ND)>;
  /// What a call brings for the branches: the state that it continues, whether it leaves its tokens
  /// pending, and whether it replaces their inputs.
  struct Call {
    State* state = nullptr;
    bool pending = false;
    Replace replace = nullptr;
  };
  /// Puts the call where branches reach it, into the context.
  static void set_call(nn::Context& context, Call call);
  /// Hidden states of the context's batch after the final norm, [N, ModelSpec::width_out()].
  Tensor forward(nn::Context& context) const;

 private:
  struct Group {
    std::unique_ptr<nn::Residual> residual;
    std::vector<nn::Branch> branches;
    bool enters = false, leaves = false;  // it begins, or ends, a run of groups with other streams
  };
  static const Call& call_of(const nn::Context& context);
  Tensor embedded(nn::Context& context) const;
  void build_layer(int64_t layer, const nn::Builder& builder, size_t& state_index);
  void mark_runs();

  const ModelSpec& spec_;
  std::unique_ptr<nn::Embed> embed_;
  bool embed_has_state_ = false;
  std::vector<std::vector<Group>> layers_;
  std::unique_ptr<nn::Norm> final_norm_;
};

}  // namespace tessera::model
