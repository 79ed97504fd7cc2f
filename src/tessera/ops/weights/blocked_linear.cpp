#include "tessera/ops/weights/blocked_linear.h"

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "tessera/base/threads.h"

namespace tessera::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// enough blocks for many threads, as long as each has rows for a product at full speed
constexpr int64_t kBlocks = 8, kLeast = 16, kMost = 512;

/// Rows of a block of a side of n: at least two blocks where there are two rows, so that each is
/// computed within a parallel region, where the library has one thread.
int64_t step_of(int64_t n) {
  const int64_t even = (n + kBlocks - 1) / kBlocks;
  const int64_t whole = std::clamp((even + kLeast - 1) / kLeast * kLeast, kLeast, kMost);
  return std::max<int64_t>(1, std::min(whole, (n + 1) / 2));
}

/// a_MK b_KN, without a graph.
Tensor product(const Tensor& a, const Tensor& b) {
  const int64_t m = a.size(0), n = b.size(1);
  Tensor out = at::empty({m, n}, a.options());
  if (m == 0 || n == 0) return out;
  // along the longer side
  const bool rows = m >= n;
  const int64_t length = rows ? m : n, step = step_of(length);
  parallel_in_turn((length + step - 1) / step, 1, [&](int64_t first, int64_t last) {
    const at::NoGradGuard no_graph;
    for (int64_t i = first; i < last; ++i) {
      const int64_t begin = i * step, size = std::min(step, length - begin);
      Tensor block = out.narrow(rows ? 0 : 1, begin, size);
      if (rows)
        at::mm_out(block, a.narrow(0, begin, size), b);
      else
        at::mm_out(block, a, b.narrow(1, begin, size));
    }
  });
  return out;
}

struct BlockedLinear : torch::autograd::Function<BlockedLinear> {
  static Tensor forward(AutogradContext* context, const Tensor& x_NI, const Tensor& w_OI) {
    context->save_for_backward({x_NI, w_OI});
    return product(x_NI.detach(), w_OI.detach().t());
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor &x = saved[0], &w = saved[1], &g = gradients[0];
    // a gradient that is to have one itself is computed by operations that have
    const auto times = [](const Tensor& a, const Tensor& b) {
      return at::GradMode::is_enabled() ? at::mm(a, b) : product(a, b);
    };
    return {context->needs_input_grad(0) ? times(g, w) : Tensor(),
            context->needs_input_grad(1) ? times(g.t(), x) : Tensor()};
  }
};

}  // namespace

Tensor blocked_linear(const Tensor& x, const Tensor& w_OI, const Tensor& bias_O) {
  auto sizes = x.sizes().vec();
  sizes.back() = w_OI.size(0);
  const Tensor y = BlockedLinear::apply(x.reshape({-1, w_OI.size(1)}), w_OI);
  return (bias_O.defined() ? y + bias_O : y).reshape(sizes);
}

}  // namespace tessera::ops
