#include "tessera/ops/basic/elementwise.h"

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "tessera/base/threads.h"
#include "tessera/ops/basic/ordered_part.h"
#include "tessera/ops/basic/pointwise.h"
#include "tessera/ops/form.h"

namespace tessera::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// numbers of a share: below 2^15, of which libtorch makes several
constexpr int64_t kShare = 8192;

Tensor value(Elementwise f, const Tensor& x) {
  switch (f) {
    case Elementwise::sigmoid:
      return at::sigmoid(x);
    case Elementwise::silu:
      return at::silu(x);
    case Elementwise::softplus:
      return at::softplus(x);
    case Elementwise::gelu:
      return at::gelu(x);
    case Elementwise::gelu_tanh:
      return at::gelu(x, "tanh");
  }
  fail(ErrorKind::internal, "elementwise", "unknown function {}", static_cast<int>(f));
}

/// g f'(x), in operations that have gradients of their own. Those of both gelus keep the relative
/// accuracy of small results, which 1 + erf and 1 + tanh below zero lose.
Tensor gradient(Elementwise f, const Tensor& g, const Tensor& x) {
  if (f == Elementwise::gelu) {  // Phi(x) + x phi(x)
    constexpr double kRootHalf = 0.7071067811865476, kRootHalfOverPi = 0.3989422804014327;
    return g * (0.5 * at::erfc(-kRootHalf * x) + kRootHalfOverPi * x * at::exp(-0.5 * x * x));
  }
  if (f == Elementwise::gelu_tanh) {  // s + x s', s = sigmoid(a (x + b x^3))
    constexpr double a = 1.5957691216057307, b = 0.044715;
    const Tensor square = x * x, s = at::sigmoid(a * x * (1 + b * square));
    return g * s * (1 + a * x * (1 - s) * (1 + 3 * b * square));
  }
  const Tensor s = at::sigmoid(x);
  if (f == Elementwise::sigmoid) return g * s * (1 - s);
  if (f == Elementwise::softplus) return g * s;
  return g * s * (1 + x * (1 - s));
}

/// make(first, n) -> the n numbers from `first` on, for shares of the numbers of `like`.
template <class Make>
Tensor in_shares(const Tensor& like, Make make) {
  const Tensor out = at::empty_like(like, at::MemoryFormat::Contiguous);
  const Tensor flat = out.view({-1});
  const int64_t n = flat.numel();
  parallel_in_turn((n + kShare - 1) / kShare, 1, [&](int64_t begin, int64_t end) {
    const at::NoGradGuard no_graph;
    const OrderedPart ordered;
    for (int64_t first = begin * kShare; first < std::min(n, end * kShare); first += kShare) {
      const int64_t size = std::min(kShare, n - first);
      flat.narrow(0, first, size).copy_(make(first, size));
    }
  });
  return out;
}

struct Shares : torch::autograd::Function<Shares> {
  static Tensor forward(AutogradContext* context, const Tensor& x, Elementwise f) {
    context->save_for_backward({x});
    context->saved_data["f"] = static_cast<int64_t>(f);
    return elementwise_value(f, x);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const Tensor x = context->get_saved_variables()[0], &g = gradients[0];
    const auto f = static_cast<Elementwise>(context->saved_data["f"].toInt());
    if (at::GradMode::is_enabled()) return {gradient(f, g, x), Tensor()};
    const Tensor flat_g = g.reshape({-1}), flat_x = x.reshape({-1});
    return {in_shares(x,
                      [&](int64_t first, int64_t n) {
                        return gradient(f, flat_g.narrow(0, first, n), flat_x.narrow(0, first, n));
                      }),
            Tensor()};
  }
};

}  // namespace

Tensor elementwise(Elementwise f, const Tensor& x) {
  return on_cpu(form_of(Op::elementwise, x)) ? Shares::apply(x, f) : value(f, x);
}

Tensor elementwise_value(Elementwise f, const Tensor& x) {
  // kernels keep small results of both gelus, and their bits do not depend on threads
  const at::NoGradGuard no_graph;
  if (f == Elementwise::gelu) return activate(x, Activation::gelu);
  if (f == Elementwise::gelu_tanh) return activate(x, Activation::gelu_tanh);
  const Tensor flat = x.detach().reshape({-1});
  return in_shares(x, [&](int64_t first, int64_t n) { return value(f, flat.narrow(0, first, n)); });
}

}  // namespace tessera::ops
