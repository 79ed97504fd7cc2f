#include "tessera/ops/basic/batch_norm.h"

#include <torch/csrc/autograd/custom_function.h>

#include "tessera/ops/basic/ordered_sum.h"

namespace tessera::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

Tensor mean_of_rows(const Tensor& x) {
  return ordered_mean(x, {0});
}

struct BatchNorm : torch::autograd::Function<BatchNorm> {
  static Tensor forward(AutogradContext* context, const Tensor& x, double eps) {
    context->save_for_backward({x});
    context->saved_data["eps"] = eps;
    const at::NoGradGuard constants;
    const Tensor centred = x - mean_of_rows(x);
    return centred * (mean_of_rows(centred.square()) + eps).rsqrt();
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const Tensor x = context->get_saved_variables()[0], &g = gradients[0];
    const Tensor centred = x - mean_of_rows(x);
    const Tensor root =
        (mean_of_rows(centred.square()) + context->saved_data["eps"].toDouble()).rsqrt();
    const Tensor y = centred * root;
    return {root * (g - mean_of_rows(g) - y * mean_of_rows(g * y)), Tensor()};
  }
};

}  // namespace

Tensor batch_norm(const Tensor& x, double eps) {
  return BatchNorm::apply(x, eps);
}

}  // namespace tessera::ops
