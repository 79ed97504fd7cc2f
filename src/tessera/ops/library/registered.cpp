// libtessera_ops.so: the CPU kernels as ordinary torch ops for Python.
//
//   torch.ops.load_library("libtessera_ops.so")
//   y = torch.ops.tessera.selective_scan(x, dt, dt_bias, a, b, c, d, 64)
//
// Every op takes tensors and one integer, and gives one tensor shaped as one of them. It has a CPU
// kernel, a Meta kernel (shapes), and an Autograd kernel whose gradient is an op of its own,
// <name>_backward: it computes the forward pass again and differentiates it, so that between the
// two passes only the inputs are kept. Gradients have none themselves.
#include "tessera/ops/library/registered.h"

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "tessera/base/threads.h"

namespace tessera::ops::library {
namespace {

using torch::autograd::AutogradContext;
using torch::jit::Stack;

constexpr std::string_view kBackward = "_backward";

std::vector<const Op*> all_ops() {
  std::vector<const Op*> all;
  for (const auto* list : {&scan_ops(), &recurrence_ops()})
    for (const Op& op : *list) all.push_back(&op);
  return all;
}

/// By its name, "tessera::ssd" or "tessera::ssd_backward".
const Op& op_of(const c10::OperatorHandle& handle) {
  static const auto by_name = [] {
    std::map<std::string, const Op*, std::less<>> out;
    for (const Op* op : all_ops())
      for (const std::string_view suffix : {std::string_view(), kBackward})
        out[std::string("tessera::") + op->name + std::string(suffix)] = op;
    return out;
  }();
  return *by_name.at(handle.schema().name());
}

c10::OperatorHandle handle_of(const std::string& name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), "");
}

/// What an op was called with; for a gradient, `gradient` comes first.
struct Arguments {
  Tensor gradient;
  Tensors tensors;
  int64_t n = 0;

  Arguments(const Op& op, Stack& stack, bool backward) {
    n = torch::jit::pop(stack).toInt();
    for (const c10::IValue& value : torch::jit::last(stack, op.arguments.size()))
      tensors.push_back(value.toTensor());
    torch::jit::drop(stack, op.arguments.size());
    if (backward) gradient = torch::jit::pop(stack).toTensor();
    check_call(op.signature(), tensors, n);
    if (backward) check_gradient(op.signature(), gradient, tensors[op.like]);
  }
};

/// An op runs on as many threads as torch's own: torch.set_num_threads.
void take_threads_of_torch() {
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

Tensor like(const Tensor& x) {
  return at::empty_like(x, at::MemoryFormat::Contiguous);
}

// --- CPU and Meta -------------------------------------------------------------------------------

void cpu(const c10::OperatorHandle& handle, Stack* stack) {
  const Op& op = op_of(handle);
  const Arguments in(op, *stack, false);
  take_threads_of_torch();
  const at::NoGradGuard no_gradients;
  stack->emplace_back(op.compute(in.tensors, in.n).contiguous());
}

void meta(const c10::OperatorHandle& handle, Stack* stack) {
  const Op& op = op_of(handle);
  const Arguments in(op, *stack, false);
  stack->emplace_back(like(in.tensors[op.like]));
}

void backward_cpu(const c10::OperatorHandle& handle, Stack* stack) {
  const Op& op = op_of(handle);
  Arguments in(op, *stack, true);
  take_threads_of_torch();
  const AutogradInside inside;
  for (Tensor& x : in.tensors) x = x.detach().requires_grad_(true);
  const Tensor y = op.compute(in.tensors, in.n);
  Tensors gradients = torch::autograd::grad({y}, in.tensors, {in.gradient}, false, false, true);
  for (size_t i = 0; i < gradients.size(); ++i)
    gradients[i] = gradients[i].defined()
                       ? gradients[i].to(in.tensors[i].scalar_type()).contiguous()
                       : at::zeros_like(in.tensors[i], at::MemoryFormat::Contiguous);
  stack->emplace_back(std::move(gradients));
}

void backward_meta(const c10::OperatorHandle& handle, Stack* stack) {
  const Arguments in(op_of(handle), *stack, true);
  Tensors out;
  for (const Tensor& x : in.tensors) out.push_back(like(x));
  stack->emplace_back(std::move(out));
}

// --- Autograd -----------------------------------------------------------------------------------

/// Calls an op of this library on tensors and an integer.
c10::IValue call(const std::string& name, at::TensorList tensors, int64_t n) {
  Stack stack(tensors.begin(), tensors.end());
  stack.emplace_back(n);
  handle_of(name).callBoxed(stack);
  return stack.at(0);
}

struct Differentiable : torch::autograd::Function<Differentiable> {
  static Tensor forward(AutogradContext* context,
                        at::TensorList inputs,
                        const std::string& name,
                        int64_t n) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->save_for_backward(inputs.vec());
    context->saved_data["name"] = name;
    context->saved_data["n"] = n;
    return call(name, inputs, n).toTensor();
  }
  static Tensors backward(AutogradContext* context, const Tensors& gradients) {
    Tensors inputs = context->get_saved_variables();
    inputs.insert(inputs.begin(), gradients[0]);
    const std::string name = context->saved_data["name"].toStringRef() + std::string(kBackward);
    Tensors out = call(name, inputs, context->saved_data["n"].toInt()).toTensorVector();
    out.resize(out.size() + 2);  // name and integer have none
    return out;
  }
};

/// The error where an op's gradient would be differentiated.
struct NoGradientOfGradients : torch::autograd::Function<NoGradientOfGradients> {
  static Tensors forward(AutogradContext* context,
                         at::TensorList inputs,
                         const std::string& name,
                         int64_t n) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->saved_data["op"] = name;
    return call(name, inputs, n).toTensorVector();
  }
  static Tensors backward(AutogradContext* context, const Tensors&) {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "[", context->saved_data["op"].toStringRef(),
                                "] gradients of gradients; use the definition in torch operations");
  }
};

/// The tensors and the integer of a call, off the stack and unchecked.
std::pair<Tensors, int64_t> taken(Stack& stack, size_t tensors) {
  const int64_t n = torch::jit::pop(stack).toInt();
  Tensors out;
  for (const c10::IValue& value : torch::jit::last(stack, tensors)) out.push_back(value.toTensor());
  torch::jit::drop(stack, tensors);
  return {std::move(out), n};
}

void autograd(const c10::OperatorHandle& handle, Stack* stack) {
  const auto [inputs, n] = taken(*stack, op_of(handle).arguments.size());
  stack->emplace_back(Differentiable::apply(at::TensorList(inputs), handle.schema().name(), n));
}

void backward_autograd(const c10::OperatorHandle& handle, Stack* stack) {
  const auto [inputs, n] = taken(*stack, 1 + op_of(handle).arguments.size());
  stack->emplace_back(
      NoGradientOfGradients::apply(at::TensorList(inputs), handle.schema().name(), n));
}

using Boxed = void(const c10::OperatorHandle&, Stack*);

template <Boxed* forward, Boxed* backward>
void implement(torch::Library& m) {
  for (const Op* op : all_ops()) {
    m.impl(op->name, torch::CppFunction::makeFromBoxedFunction<forward>());
    m.impl((std::string(op->name) + std::string(kBackward)).c_str(),
           torch::CppFunction::makeFromBoxedFunction<backward>());
  }
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(tessera, m) {
  for (const Op* op : all_ops()) {
    const std::string name = op->name;
    std::string arguments;
    for (const Argument& a : op->arguments) arguments += std::string("Tensor ") + a.name + ", ";
    arguments += std::string("int ") + op->integer.name;
    m.def((name + "(" + arguments + ") -> Tensor").c_str());
    m.def((name + std::string(kBackward) + "(Tensor grad, " + arguments + ") -> Tensor[]").c_str());
  }
}
TORCH_LIBRARY_IMPL(tessera, CPU, m) {
  implement<cpu, backward_cpu>(m);
}
TORCH_LIBRARY_IMPL(tessera, Meta, m) {
  implement<meta, backward_meta>(m);
}
TORCH_LIBRARY_IMPL(tessera, Autograd, m) {
  implement<autograd, backward_autograd>(m);
}

}  // namespace tessera::ops::library
