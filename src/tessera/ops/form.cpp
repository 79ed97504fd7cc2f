#include "tessera/ops/form.h"

#include <array>
#include <atomic>

#include "tessera/ops/cuda_kernels.h"

namespace tessera::ops {
namespace {

[[maybe_unused]] constexpr Serves kKernel{
    Form::kernel,
    [](const Setting& s) { return s.device == at::kCPU && s.type == at::kFloat && !s.gradients; }};
[[maybe_unused]] constexpr Serves kFused{
    Form::learning,
    [](const Setting& s) { return s.device == at::kCPU && s.type == at::kFloat && s.gradients; }};
[[maybe_unused]] constexpr Serves kLearning{
    Form::learning, [](const Setting& s) { return s.device == at::kCPU && s.type != at::kDouble; }};
[[maybe_unused]] constexpr Serves kAnyType{Form::learning,
                                           [](const Setting& s) { return s.device == at::kCPU; }};
// float32 and float64, which products in a fixed order have
[[maybe_unused]] constexpr Serves kOrdered{Form::learning, [](const Setting& s) {
                                             return s.device == at::kCPU && s.gradients &&
                                                    (s.type == at::kFloat || s.type == at::kDouble);
                                           }};
[[maybe_unused]] constexpr Serves kCuda{Form::cuda, [](const Setting& s) {
                                          return s.device != at::kCPU && s.cuda_kernels &&
                                                 s.type == at::kFloat;
                                        }};
[[maybe_unused]] constexpr Serves kCudaNarrow{Form::cuda, [](const Setting& s) {
                                                return s.device != at::kCPU && s.cuda_kernels &&
                                                       s.type != at::kDouble;
                                              }};

// the forms of each operation
#define TESSERA_OPERATION(name, what, ...) constexpr std::array k_##name{__VA_ARGS__};
#include "tessera/ops/operations.def"
#undef TESSERA_OPERATION

constexpr std::array kOperations{
#define TESSERA_OPERATION(name, what, ...) Operation{Op::name, #name, what, k_##name},
#include "tessera/ops/operations.def"
#undef TESSERA_OPERATION
};

std::atomic<bool> available{false};
std::atomic<at::DeviceType> available_on{at::kCUDA};
std::atomic<FormObserver> observer_of_forms{nullptr};

}  // namespace

const char* name_of(Form form) {
  constexpr std::array kNames{"plain", "kernel", "learning", "cuda"};
  static_assert(kNames.size() == static_cast<size_t>(Form::cuda) + 1);
  return kNames[static_cast<size_t>(form)];
}

Setting setting_of(const Tensor& x) {
  const at::DeviceType device = x.device().type();
  return {device, x.scalar_type(), at::GradMode::is_enabled(),
          cuda_kernels() && device == available_on};
}

std::span<const Operation> operations() {
  return kOperations;
}

Form form_of(Op op, const Setting& setting) {
  for (const Serves& row : kOperations[static_cast<size_t>(op)].forms)
    if (row.serves(setting)) return row.form;
  return Form::plain;
}

Form form_of(Op op, const Tensor& x) {
  const Setting setting = setting_of(x);
  const Form form = form_of(op, setting);
  if (const FormObserver observe = observer_of_forms.load(std::memory_order_relaxed))
    observe(op, setting, form);
  return form;
}

bool on_host(at::Device device) {
  return device.is_cpu();
}
bool on_host(const Tensor& x) {
  return on_host(x.device());
}

bool cuda_kernels() {
  return available;
}

void set_cuda_kernels(bool is) {
  available = is;
}

void count_as_cuda(at::DeviceType device) {
  available_on = device;
}

void observe_forms(FormObserver observer) {
  observer_of_forms = observer;
}

}  // namespace tessera::ops
