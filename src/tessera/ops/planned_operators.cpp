// Shapes of operators that libtorch's C++ has no meta kernel for (its Python has): those that parts
// of a model and update rules take.
#include "tessera/ops/planned_operators.h"

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace tessera::ops {
namespace {

Tensor like(const Tensor& x) {
  return at::empty_like(x);
}
Tensor scalar(const Tensor& x) {
  return at::empty({}, x.options());
}
Tensor broadcast(const Tensor& a, const Tensor& b) {
  return at::empty(at::infer_size(a.sizes(), b.sizes()), a.options().dtype(at::result_type(a, b)));
}

Tensor index_select(const Tensor& x, int64_t dim, const Tensor& index) {
  std::vector<int64_t> shape = x.sizes().vec();
  if (!shape.empty()) shape[static_cast<size_t>(at::maybe_wrap_dim(dim, x.dim()))] = index.numel();
  return at::empty(shape, x.options());
}
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  const Tensor both = broadcast(a, b);
  return at::empty(at::infer_size(condition.sizes(), both.sizes()), both.options());
}
Tensor& where_out(const Tensor& condition, const Tensor& a, const Tensor& b, Tensor& out) {
  out.resize_(at::infer_size(condition.sizes(), at::infer_size(a.sizes(), b.sizes())));
  return out;
}
Tensor embedding_backward(const Tensor& gradient,
                          const Tensor& /*ids*/,
                          int64_t rows,
                          int64_t /*padding*/,
                          bool /*scale*/) {
  return at::empty({rows, gradient.size(-1)}, gradient.options());
}
std::tuple<Tensor, Tensor, Tensor> layer_norm_backward(const Tensor& /*gradient*/,
                                                       const Tensor& x,
                                                       at::IntArrayRef /*shape*/,
                                                       const Tensor& /*mean*/,
                                                       const Tensor& /*rstd*/,
                                                       const std::optional<Tensor>& weight,
                                                       const std::optional<Tensor>& bias,
                                                       std::array<bool, 3> mask) {
  const auto of = [](bool asked, const Tensor& t) {
    return asked && t.defined() ? like(t) : Tensor();
  };
  return {of(mask[0], x), of(mask[1], weight.value_or(Tensor())),
          of(mask[2], bias.value_or(Tensor()))};
}
std::tuple<Tensor, Tensor> log_sigmoid(const Tensor& x) {
  return {like(x), like(x)};
}
Tensor log_sigmoid_backward(const Tensor& /*gradient*/, const Tensor& x, const Tensor& /*buffer*/) {
  return like(x);
}
Tensor same_dims(const Tensor& x, at::IntArrayRef /*dims*/) {
  return like(x);
}
Tensor roll(const Tensor& x, at::IntArrayRef /*shifts*/, at::IntArrayRef /*dims*/) {
  return like(x);
}
Tensor rsub(const Tensor& a, const Tensor& b, const at::Scalar& /*alpha*/) {
  return broadcast(b, a);
}
Tensor is_nan(const Tensor& x) {
  return at::empty(x.sizes(), x.options().dtype(at::kBool));
}
Tensor& logical_out(const Tensor& a, const Tensor& b, Tensor& out) {
  out.resize_(at::infer_size(a.sizes(), b.sizes()));
  return out;
}
Tensor& logical_not_out(const Tensor& a, Tensor& out) {
  out.resize_(a.sizes());
  return out;
}
Tensor dot(const Tensor& a, const Tensor& /*b*/) {
  return scalar(a);
}
Tensor& relu_(Tensor& x) {
  return x;
}
Tensor solve_triangular(
    const Tensor& a, const Tensor& b, bool /*upper*/, bool /*left*/, bool /*unitriangular*/) {
  // b's matrix for every matrix of a
  std::vector<int64_t> shape =
      at::infer_size(a.sizes().slice(0, a.dim() - 2), b.sizes().slice(0, b.dim() - 2));
  shape.insert(shape.end(), {b.size(-2), b.size(-1)});
  return at::empty(shape, b.options());
}
Tensor bucketize(const Tensor& x, const Tensor& /*borders*/, bool int32, bool /*right*/) {
  return at::empty(x.sizes(), x.options().dtype(int32 ? at::kInt : at::kLong));
}
Tensor variance(const Tensor& x,
                at::OptionalIntArrayRef dims,
                const std::optional<at::Scalar>& /*correction*/,
                bool keep) {
  // of the shape of a mean
  return x.mean(dims, keep);
}

/// Registers a kernel, unless libtorch has one.
template <class Kernel>
void add(torch::Library& library, const char* name, Kernel kernel) {
  const std::string full = name;
  const size_t dot = full.find('.');
  const auto op = c10::Dispatcher::singleton().findOp(
      {"aten::" + full.substr(0, dot), dot == std::string::npos ? "" : full.substr(dot + 1)});
  if (op && !op->hasKernelForDispatchKey(c10::DispatchKey::Meta)) library.impl(name, kernel);
}

}  // namespace

void add_planned_operators() {
  static const auto* const library = [] {
    auto* made = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::Meta, __FILE__,
                                    __LINE__);
    add(*made, "index_select", index_select);
    add(*made, "where.self", where);
    add(*made, "where.self_out", where_out);
    add(*made, "embedding_dense_backward", embedding_backward);
    add(*made, "native_layer_norm_backward", layer_norm_backward);
    add(*made, "log_sigmoid_forward", log_sigmoid);
    add(*made, "log_sigmoid_backward", log_sigmoid_backward);
    add(*made, "relu", like);
    add(*made, "relu_", relu_);
    add(*made, "hardswish", like);
    add(*made, "flip", same_dims);
    add(*made, "roll", roll);
    add(*made, "rsub.Tensor", rsub);
    add(*made, "floor_divide", broadcast);
    add(*made, "isnan", is_nan);
    for (const char* name : {"logical_and.out", "logical_or.out", "logical_xor.out"})
      add(*made, name, logical_out);
    add(*made, "logical_not.out", logical_not_out);
    add(*made, "dot", dot);
    add(*made, "max", scalar);
    add(*made, "min", scalar);
    add(*made, "linalg_solve_triangular", solve_triangular);
    add(*made, "bucketize.Tensor", bucketize);
    add(*made, "var.correction", variance);
    add(*made, "std.correction", variance);
    return made;
  }();
  (void)library;
}

}  // namespace tessera::ops
