#include "tessera/ops/basic/over_rows.h"

#include <torch/csrc/autograd/custom_function.h>

#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/form.h"
#include "tessera/ops/weights/product.h"

namespace tessera::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct OverRows : torch::autograd::Function<OverRows> {
  static Tensor forward(AutogradContext* context,
                        const Tensor& w,
                        const std::vector<int64_t>& sizes) {
    context->saved_data["shape"] = w.sizes().vec();
    // no view: autograd takes none from a function
    const Tensor row = w.detach().reshape({-1}).expand(sizes);
    return at::empty({0}, w.options())
        .set_(row.storage(), row.storage_offset(), row.sizes(), row.strides());
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const std::vector<int64_t> shape = context->saved_data["shape"].toIntVector();
    const Tensor& g = gradients[0];
    // a gradient that is to have one itself is computed by operations that have
    Tensor sum = at::GradMode::is_enabled() ? g.reshape({-1, g.size(-1)}).sum(0) : sum_of_rows(g);
    if (c10::multiply_integers(shape) == 1) sum = ordered_sum(sum);
    return {sum.reshape(shape), Tensor()};
  }
};

}  // namespace

Tensor over_rows(const Tensor& w, const Tensor& x) {
  if (!on_cpu(form_of(Op::over_rows, w)) || !w.requires_grad() || x.dim() == 0) return w;
  return OverRows::apply(w, x.sizes().vec());
}

Tensor sum_of_rows(const Tensor& x) {
  const int64_t c = x.size(-1), n = c == 0 ? 0 : x.numel() / c;
  if (!on_cpu(form_of(Op::sum_of_rows, x))) return x.reshape({n, c}).sum(0);
  const Tensor sum = at::zeros({1, c}, x.options());
  if (n > 0) multiply_into(sum, at::ones({1, n}, x.options()), x.reshape({n, c}));
  return sum.squeeze(0);
}

}  // namespace tessera::ops
