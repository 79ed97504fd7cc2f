#include "tessera/ops/form.h"

#include <array>
#include <atomic>

namespace tessera::ops {
namespace {

bool at_most_float(at::ScalarType type) {
  return type != at::kDouble;
}

constexpr Serves kKernel{Form::kernel, [](const Setting& s) {
                           return s.device == at::kCPU && s.type == at::kFloat && !s.gradients;
                         }};
constexpr Serves kLearning{Form::learning, [](const Setting& s) {
                             return s.device == at::kCPU && at_most_float(s.type) && s.gradients;
                           }};
constexpr Serves kCuda{Form::cuda, [](const Setting& s) {
                         return s.device == at::kCUDA && s.type == at::kFloat && cuda_kernels();
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

}  // namespace

const char* name_of(Form form) {
  constexpr std::array kNames{"plain", "kernel", "learning", "cuda"};
  static_assert(kNames.size() == static_cast<size_t>(Form::cuda) + 1);
  return kNames[static_cast<size_t>(form)];
}

Setting setting_of(const Tensor& x) {
  return {x.device().type(), x.scalar_type(), at::GradMode::is_enabled()};
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
  return form_of(op, setting_of(x));
}

bool cuda_kernels() {
  return available;
}

void set_cuda_kernels(bool is) {
  available = is;
}

}  // namespace tessera::ops
