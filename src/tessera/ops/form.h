// Which form of an operation computes: one table (operations.def), from the operation and what it
// computes with (device, type, gradients) to the form.
//
// Every operation has a plain form made of torch's operations: its definition, differentiable, for
// any device and type. Where no row of the table serves, it computes. Attention has a table of its
// own, since more decides there (attention/attention_form.h).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "tessera/ops/tensor.h"

namespace tessera::ops {

enum class Form : uint8_t {
  plain,     // torch's operations
  kernel,    // batch-invariant kernels of the CPU: a row's bits do not depend on the other rows
  learning,  // kernels of the CPU that have a backward pass of their own
  cuda,      // kernels of CUDA (cuda/), with a backward pass of their own where gradients are needed
};
const char* name_of(Form form);
/// Whether kernels of the CPU compute.
constexpr bool on_cpu(Form form) {
  return form == Form::kernel || form == Form::learning;
}

/// The operations, in the order of operations.def.
enum class Op : uint16_t {
#define TESSERA_OPERATION(name, ...) name,
#include "tessera/ops/operations.def"
#undef TESSERA_OPERATION
};

/// What decides between the forms of an operation.
struct Setting {
  at::DeviceType device = at::kCPU;
  at::ScalarType type = at::kFloat;
  bool gradients = false;     // are recorded
  bool cuda_kernels = false;  // can be launched
};
Setting setting_of(const Tensor& x);

/// A form and where it serves.
struct Serves {
  Form form;
  bool (*serves)(const Setting&);
};

struct Operation {
  Op op;
  std::string_view name;
  std::string_view what;          // one line of documentation
  std::span<const Serves> forms;  // the first that serves is taken
};
/// All, in the order of Op.
std::span<const Operation> operations();

/// The answer of the table.
Form form_of(Op op, const Setting& setting);
/// The form that is to compute `op` of x here and now.
Form form_of(Op op, const Tensor& x);

/// Whether the batch-invariant kernel of `op` computes x.
inline bool kernel_serves(Op op, const Tensor& x) {
  return form_of(op, x) == Form::kernel;
}
/// Whether documents of a batch are computed one by one, by batch-invariant kernels, so that no bit
/// of one depends on the others; else together.
inline bool documents_apart(const Tensor& x) {
  return kernel_serves(Op::documents, x);
}

/// Whether numbers lie in this machine's memory, where reading them waits for no device.
bool on_host(at::Device device);
bool on_host(const Tensor& x);

/// Whether kernels of CUDA can be launched here: the library that has them was opened, and a GPU is
/// there. Without them the plain form serves.
bool cuda_kernels();
/// What the library of CUDA kernels sets when it is opened (cuda/).
void set_cuda_kernels(bool available);

/// Tests: called with the answer of every form_of(op, tensor), on any thread; null: nothing is.
using FormObserver = void (*)(Op op, const Setting& setting, Form form);
void observe_forms(FormObserver observer);

}  // namespace tessera::ops
