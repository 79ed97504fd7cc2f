#include <torch/csrc/autograd/custom_function.h>

#include "tessera/base/threads.h"
#include "tessera/ops/basic/elementwise.h"
#include "tessera/ops/basic/fused.h"

namespace tessera::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kGrain = 1 << 14;  // elements

/// y = g s u with s = sigmoid(g):  du = dy g s;  dg = dy u s (1 + g (1 - s)). `s` may be dg.
void backward_range(const float* __restrict g,
                    const float* __restrict u,
                    const float* __restrict dy,
                    const float* s,
                    int64_t n,
                    float* dg,
                    float* __restrict du) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float sigmoid = s[i];
    du[i] = dy[i] * g[i] * sigmoid;
    dg[i] = dy[i] * u[i] * sigmoid * (1 + g[i] * (1 - sigmoid));
  }
}

struct SwiGlu : torch::autograd::Function<SwiGlu> {
  static Tensor forward(AutogradContext* context, const Tensor& gate, const Tensor& up) {
    const Tensor g = gate.contiguous(), u = up.contiguous();
    Tensor y = elementwise_value(Elementwise::sigmoid, g);  // becomes the result, in place
    const auto *g_data = g.const_data_ptr<float>(), *u_data = u.const_data_ptr<float>();
    auto* y_data = y.data_ptr<float>();
    parallel_for(g.numel(), kGrain, [&](int64_t begin, int64_t end) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) y_data[i] = g_data[i] * y_data[i] * u_data[i];
    });
    context->save_for_backward({g, u});
    return y;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor &g = saved[0], &u = saved[1], dy = gradients[0].contiguous();
    Tensor dg = elementwise_value(Elementwise::sigmoid, g), du = at::empty_like(u);
    const auto *g_data = g.const_data_ptr<float>(), *u_data = u.const_data_ptr<float>(),
               *dy_data = dy.const_data_ptr<float>();
    auto *dg_data = dg.data_ptr<float>(), *du_data = du.data_ptr<float>();
    parallel_for(g.numel(), kGrain, [&](int64_t begin, int64_t end) {
      backward_range(g_data + begin, u_data + begin, dy_data + begin, dg_data + begin, end - begin,
                     dg_data + begin, du_data + begin);
    });
    return {dg, du};
  }
};

}  // namespace

Tensor fused_swiglu(const Tensor& gate, const Tensor& up) {
  return SwiGlu::apply(gate, up);
}

}  // namespace tessera::ops
