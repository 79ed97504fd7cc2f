#include "tessera/nn/residual/reversible.h"

#include <torch/csrc/autograd/custom_function.h>

#include "tessera/nn/checkpointing.h"
#include "tessera/nn/residual/damped.h"

namespace tessera::nn {

/// A run of reversible branches: the streams after the last one, and how far the backward pass has
/// taken them back. Nothing else is kept of the values between.
struct ReversibleChain {
  Tensor last_2ND;
  Tensor now_2ND;  // in front of branch `now`
  int64_t now = 0;
  int64_t length = 0;  // branches

  /// The streams after branch `index`.
  const Tensor& behind(int64_t index) {
    if (index + 1 == length) {
      now_2ND = last_2ND;
      now = length;
    }
    if (now != index + 1)
      fail(ErrorKind::usage, "reversible",
           "gradients reach branch {} without those of later branches; compute them from the end "
           "of the stack",
           index);
    return now_2ND;
  }
  void set_front(int64_t index, Tensor x_2ND) {
    now_2ND = index == 0 ? Tensor() : std::move(x_2ND);
    now = index;
  }
};

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Step final : torch::CustomClassHolder {
  std::shared_ptr<CheckpointedRegion> region;  // f of the norm
  std::shared_ptr<ReversibleChain> chain;
  int64_t index = 0;
  Tensor y_2ND;  // until the graph has it
};

struct Reverse : torch::autograd::Function<Reverse> {
  static variable_list forward(AutogradContext* context,
                               const c10::intrusive_ptr<Step>& step,
                               at::TensorList) {
    context->saved_data["step"] = c10::IValue::make_capsule(step);
    variable_list out = step->region->take_outputs();
    out[0] = std::move(step->y_2ND);
    return out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    require_first_derivative();
    const auto holder = context->saved_data["step"].toCapsule();
    const Step& step = *static_cast<Step*>(holder.get());
    const Tensor y_2ND = step.chain->behind(step.index);
    const Tensor &x2 = y_2ND[0], &y1 = y_2ND[1], &of_y1 = gradients[0][1];

    variable_list of_outputs = gradients;
    of_outputs[0] = of_y1;
    const CheckpointedRegion::Gradients g = step.region->again(x2, of_outputs);
    step.chain->set_front(step.index, at::stack({y1 - g.y, x2}));

    variable_list out{Tensor(), at::stack({of_y1, gradients[0][0] + g.x})};  // nothing for the step
    out.insert(out.end(), g.inputs.begin(), g.inputs.end());
    return out;
  }
};

class Reversible final : public Residual {
 public:
  explicit Reversible(const ReversibleConfig& config) : config_(config) {}

  Stream enter(const Tensor& x_ND, Context& context) const override {
    context.reversible = std::make_shared<ReversibleChain>();
    return {at::stack({x_ND, x_ND})};
  }

  Tensor leave(const Stream& stream, Context&) const override {
    const Tensor& x_2ND = stream.front();
    return config_.merge == StreamMerge::concat ? at::cat({x_2ND[0], x_2ND[1]}, 1)
                                                : (x_2ND[0] + x_2ND[1]) * 0.5;
  }

  Stream forward(Stream stream, std::span<const Branch> branches, Context& context) const override {
    const Tensor& x_2ND = stream.front();
    const Branch& branch = branches[0];
    const auto f = [config = config_, &branch](const Tensor& x_ND, Context& here) {
      return damped(config, branch.run(branch.norms[0]->forward(x_ND, here), here), branch, here);
    };
    const Tensor x1 = x_2ND[0], x2 = x_2ND[1];
    if (!at::GradMode::is_enabled() || context.call.runs_once())
      return {at::stack({x2, x1 + f(x2, context)})};

    auto step = c10::make_intrusive<Step>();
    step->region = std::make_shared<CheckpointedRegion>(f, branch.weights, x2, context);
    step->chain = context.reversible;
    step->index = step->chain->length++;
    {
      const at::NoGradGuard outside_the_graph;
      step->y_2ND = at::stack({x2, x1 + step->region->value()});
    }
    step->chain->last_2ND = step->y_2ND.detach();
    variable_list inputs{x_2ND};
    const auto& read = step->region->inputs();
    inputs.insert(inputs.end(), read.begin(), read.end());
    const variable_list outputs = Reverse::apply(step, at::TensorList(inputs));
    step->region->publish(outputs, context);
    return {outputs[0]};
  }

 private:
  ReversibleConfig config_;
};

}  // namespace

std::unique_ptr<Residual> build(const ReversibleConfig& config, const Builder&) {
  return std::make_unique<Reversible>(config);
}

}  // namespace tessera::nn
