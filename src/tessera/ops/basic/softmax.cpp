#include "tessera/ops/basic/softmax.h"

#include <torch/csrc/autograd/custom_function.h>

namespace tessera::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Softmax : torch::autograd::Function<Softmax> {
  static Tensor forward(AutogradContext* context, const Tensor& x) {
    const Tensor y = at::softmax(x, -1);
    context->save_for_backward({y});
    return y;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    // y (g - sum(g y)), in operations that have gradients of their own
    const Tensor y = context->get_saved_variables()[0], gy = gradients[0] * y;
    return {gy - y * gy.contiguous().sum(-1, true)};
  }
};

}  // namespace

Tensor softmax(const Tensor& x) {
  return at::GradMode::is_enabled() ? Softmax::apply(x) : at::softmax(x, -1);
}

}  // namespace tessera::ops
