// How a struct that names an op and computes it becomes an op of libtessera_ops.so: its schema, its
// CPU, Meta and Autograd kernels, and the op that is its gradient.
#pragma once

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "tessera/base/threads.h"
#include "tessera/ops/library/shapes.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops::library {

using Tensors = std::vector<Tensor>;

/// An op runs on as many threads as torch's own: what torch.set_num_threads said.
inline void take_threads_of_torch() {
  set_thread_count(std::min(at::get_num_threads(), 4096));
}

/// Autograd works inside while this lives, although an op is being called below it.
class AutogradInside {
 public:
  AutogradInside() : guard_(local().included_, local().excluded_ - c10::autograd_dispatch_keyset) {}

 private:
  static c10::impl::LocalDispatchKeySet local() { return c10::impl::tls_local_dispatch_key_set(); }
  c10::impl::ForceDispatchKeyGuard guard_;
  at::AutoGradMode grad_{true};
};

/// Stands where an op's gradient would be differentiated.
struct NoGradientOfGradients : torch::autograd::Function<NoGradientOfGradients> {
  static Tensors forward(torch::autograd::AutogradContext* context,
                         at::TensorList inputs,
                         const c10::OperatorHandle& op,
                         int64_t n) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->saved_data["op"] = op.schema().name();
    torch::jit::Stack stack(inputs.begin(), inputs.end());
    stack.emplace_back(n);
    op.callBoxed(stack);
    return stack.at(0).toTensorVector();
  }
  static Tensors backward(torch::autograd::AutogradContext* context, const Tensors&) {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "[", context->saved_data["op"].toStringRef(),
                                "] gradients of gradients; use the definition in torch operations");
  }
};

template <class Op, class Index = std::make_index_sequence<Op::arguments.size()>>
struct Registered;

template <class Op, size_t... I>
struct Registered<Op, std::index_sequence<I...>> {
  template <size_t>
  using Arg = const Tensor&;

  static constexpr Signature signature{Op::name, Op::arguments, Op::integer};

  static c10::OperatorHandle handle(const char* suffix) {
    return c10::Dispatcher::singleton().findSchemaOrThrow(
        (std::string("tessera::") + Op::name + suffix).c_str(), "");
  }

  static Tensor cpu(Arg<I>... t, int64_t n) {
    check_call(signature, {t...}, n);
    take_threads_of_torch();
    const at::NoGradGuard no_gradients;
    return Op::compute({t...}, n).contiguous();
  }
  static Tensor meta(Arg<I>... t, int64_t n) {
    check_call(signature, {t...}, n);
    return at::empty_like(Tensors{t...}[Op::like], at::MemoryFormat::Contiguous);
  }
  static Tensors backward_cpu(const Tensor& gradient, Arg<I>... t, int64_t n) {
    Tensors inputs{t...};
    check_call(signature, inputs, n);
    check_gradient(signature, gradient, inputs[Op::like]);
    take_threads_of_torch();
    const AutogradInside inside;
    for (Tensor& x : inputs) x = x.detach().requires_grad_(true);
    const Tensor y = Op::compute(inputs, n);
    Tensors gradients = torch::autograd::grad({y}, inputs, {gradient}, false, false, true);
    for (size_t i = 0; i < inputs.size(); ++i)
      gradients[i] = gradients[i].defined()
                         ? gradients[i].to(inputs[i].scalar_type()).contiguous()
                         : at::zeros_like(inputs[i], at::MemoryFormat::Contiguous);
    return gradients;
  }
  static Tensors backward_meta(const Tensor& gradient, Arg<I>... t, int64_t n) {
    const Tensors inputs{t...};
    check_call(signature, inputs, n);
    check_gradient(signature, gradient, inputs[Op::like]);
    Tensors out;
    for (const Tensor& x : inputs) out.push_back(at::empty_like(x, at::MemoryFormat::Contiguous));
    return out;
  }

  struct Function : torch::autograd::Function<Function> {
    static Tensor forward(torch::autograd::AutogradContext* context,
                          at::TensorList inputs,
                          int64_t n) {
      const at::AutoDispatchBelowADInplaceOrView below;
      context->save_for_backward(inputs.vec());
      context->saved_data["n"] = n;
      static const auto op = handle("").template typed<Tensor(Arg<I>..., int64_t)>();
      return op.call(inputs[I]..., n);
    }
    static Tensors backward(torch::autograd::AutogradContext* context, const Tensors& gradients) {
      const Tensors inputs = context->get_saved_variables();
      static const auto op =
          handle("_backward").template typed<Tensors(const Tensor&, Arg<I>..., int64_t)>();
      Tensors out = op.call(gradients[0], inputs[I]..., context->saved_data["n"].toInt());
      out.emplace_back();  // the integer has none
      return out;
    }
  };
  static Tensor autograd(Arg<I>... t, int64_t n) {
    const Tensors inputs{t...};
    return Function::apply(at::TensorList(inputs), n);
  }
  static Tensors backward_autograd(const Tensor& gradient, Arg<I>... t, int64_t n) {
    const Tensors inputs{gradient, t...};
    static const auto op = handle("_backward");
    return NoGradientOfGradients::apply(at::TensorList(inputs), op, n);
  }
};

/// Every op: `name`, `arguments` (its tensors), an `integer`, the argument `like` whose shape the
/// result has, and `compute`.
template <class... Ops>
struct All {
  static void define(torch::Library& m) {
    const auto one = [&]<class Op>() {
      const std::string name = Op::name;
      std::string arguments;
      for (const Argument& a : Op::arguments) arguments += std::string("Tensor ") + a.name + ", ";
      arguments += std::string("int ") + Op::integer.name;
      m.def((name + "(" + arguments + ") -> Tensor").c_str());
      m.def((name + "_backward(Tensor grad, " + arguments + ") -> Tensor[]").c_str());
    };
    (one.template operator()<Ops>(), ...);
  }
  static void cpu(torch::Library& m) {
    const auto one = [&]<class Op>() {
      m.impl(Op::name, &Registered<Op>::cpu);
      m.impl((std::string(Op::name) + "_backward").c_str(), &Registered<Op>::backward_cpu);
    };
    (one.template operator()<Ops>(), ...);
  }
  static void meta(torch::Library& m) {
    const auto one = [&]<class Op>() {
      m.impl(Op::name, &Registered<Op>::meta);
      m.impl((std::string(Op::name) + "_backward").c_str(), &Registered<Op>::backward_meta);
    };
    (one.template operator()<Ops>(), ...);
  }
  static void autograd(torch::Library& m) {
    const auto one = [&]<class Op>() {
      m.impl(Op::name, &Registered<Op>::autograd);
      m.impl((std::string(Op::name) + "_backward").c_str(), &Registered<Op>::backward_autograd);
    };
    (one.template operator()<Ops>(), ...);
  }
};

}  // namespace tessera::ops::library

// What a source file adds to the library: All<...>.
#define TESSERA_TORCH_OPS(Every)             \
  TORCH_LIBRARY_FRAGMENT(tessera, m) {       \
    Every::define(m);                        \
  }                                          \
  TORCH_LIBRARY_IMPL(tessera, CPU, m) {      \
    Every::cpu(m);                           \
  }                                          \
  TORCH_LIBRARY_IMPL(tessera, Meta, m) {     \
    Every::meta(m);                          \
  }                                          \
  TORCH_LIBRARY_IMPL(tessera, Autograd, m) { \
    Every::autograd(m);                      \
  }
