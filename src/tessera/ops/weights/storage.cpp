#include "tessera/ops/weights/storage.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <optional>

#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/basic/over_rows.h"
#include "tessera/ops/form.h"
#include "tessera/ops/weights/product.h"
#include "tessera/ops/weights/storage_handle.h"

namespace tessera::ops {
namespace {

struct TypePair {
  DType ours;
  at::ScalarType theirs;
};
constexpr TypePair kTypes[] = {{DType::f64, at::kDouble}, {DType::f32, at::kFloat},
                               {DType::f16, at::kHalf},   {DType::bf16, at::kBFloat16},
                               {DType::i64, at::kLong},   {DType::i32, at::kInt},
                               {DType::i16, at::kShort},  {DType::i8, at::kChar},
                               {DType::u8, at::kByte},    {DType::boolean, at::kBool}};

}  // namespace

at::ScalarType scalar_type_of(DType dtype) {
  for (const auto& [ours, theirs] : kTypes)
    if (ours == dtype) return theirs;
  fail(ErrorKind::internal, "weight", "{} has no tensor type", name_of(dtype));
}

DType dtype_of(at::ScalarType type) {
  for (const auto& [ours, theirs] : kTypes)
    if (theirs == type) return ours;
  fail(ErrorKind::internal, "weight", "tensor type {} has no storage type", at::toString(type));
}

int64_t Storage::elements() const {
  int64_t n = 1;
  for (const int64_t size : shape_) n *= size;
  return n;
}

const Tensor& Storage::dense() const {
  static const Tensor none;
  return none;
}

Tensor Storage::decoded(at::Device device) const {
  const std::lock_guard lock(mutex_);
  for (const Tensor& known : decoded_)
    if (known.device() == device) return known;
  const at::NoGradGuard constant;
  decoded_.push_back(tensor().to(device));
  return decoded_.back();
}

Tensor Storage::matrix(at::Device device, at::ScalarType type) const {
  return decoded(device).to(type);
}

StoragePtr Storage::expert(int64_t index) const {
  if (dense().defined()) return slice(index);
  const std::lock_guard lock(mutex_);
  experts_.resize(static_cast<size_t>(size(0)));
  StoragePtr& known = experts_[static_cast<size_t>(index)];
  if (known == nullptr) known = slice(index);
  return known;
}

namespace {

/// product() through numbers that stay as they are.
struct ConstantProduct : torch::autograd::Function<ConstantProduct> {
  using Form = Tensor (*)(const Storage& w, const Tensor& x, const Tensor& bias_O);
  static Tensor forward(torch::autograd::AutogradContext* context,
                        const Tensor& x,
                        const std::optional<Tensor>& bias,
                        const StoragePtr& w,
                        Form form) {
    context->saved_data["w"] = StorageHandle::keep(w);
    context->saved_data["biased"] = bias.has_value();
    return form(*w, x, bias.value_or(Tensor()));
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const Tensor& dy = gradients[0];
    Tensor dx, dbias;
    if (context->needs_input_grad(0))
      dx = StorageHandle::kept(context->saved_data["w"])->transposed(dy);
    // given tensors alone are counted
    if (context->saved_data["biased"].toBool() && context->needs_input_grad(1))
      dbias = sum_of_rows(dy);
    return {dx, dbias, Tensor(), Tensor()};
  }
};

}  // namespace

Tensor Storage::constant_product(const Tensor& x, const Tensor& bias_O) const {
  return ConstantProduct::apply(x, bias_O.defined() ? std::optional<Tensor>(bias_O) : std::nullopt,
                                shared_from_this(),
                                [](const Storage& w, const Tensor& input, const Tensor& bias) {
                                  return w.unrecorded_product(input, bias);
                                });
}

Tensor Storage::unrecorded_product(const Tensor& x, const Tensor& bias_O) const {
  return product(x, nullptr, bias_O, {});
}

Tensor Storage::product(const Tensor& x,
                        const SharedInput* /*shared*/,
                        const Tensor& bias_O,
                        const ProductSettings& settings) const {
  const at::ScalarType type = product_type(x);
  const Tensor w_OI = matrix(x.device(), type);
  const Tensor b = bias_O.defined() ? bias_O.to(x.device(), type) : Tensor();
  const Tensor input = x.to(type);
  const bool learns = form_of(Op::product, input) == Form::learning;
  if (learns && type == at::kDouble) {
    const Tensor y = ops::product(input, w_OI.t());
    return b.defined() ? y + spread(b, y) : y;
  }
  if (type != at::kFloat || !at::GradMode::is_enabled() ||
      (!learns && settings.type == ProductType::float32))
    return at::linear(input, w_OI, b).to(x.scalar_type());
  const bool in_place = settings.gradients_in_place && learns && input.dim() == 2 &&
                        w_OI.is_leaf() && w_OI.requires_grad() && w_OI.is_same(dense());
  const Tensor y = in_place ? product_in_place(input, w_OI, settings.type)
                   : settings.type == ProductType::float32
                       ? ops::product(input, w_OI.t())
                       : rounded_product(input, w_OI.t(), settings.type);
  return (b.defined() ? y + over_rows(b, y) : y).to(x.scalar_type());
}

Tensor Storage::grouped(const Tensor& x_NI,
                        const SharedInput* /*shared*/,
                        const std::vector<int64_t>& offsets,
                        const Tensor& bias_EO,
                        const ProductSettings& settings) const {
  std::vector<Tensor> parts;
  for_experts(offsets, [&](int64_t e, int64_t begin, int64_t n) {
    const Tensor y = expert(e)->product(x_NI.narrow(0, begin, n), nullptr, Tensor(), settings);
    parts.push_back(bias_EO.defined() ? y + bias_EO.select(0, e).to(y.device(), y.scalar_type())
                                      : y);
  });
  return parts.empty() ? at::empty({0, size(1)}, x_NI.options()) : at::cat(parts);
}

Tensor Storage::transposed(const Tensor& y) const {
  const Tensor wide = y.to(product_type(y));
  const Tensor w_OI = matrix(y.device(), wide.scalar_type());
  if (form_of(Op::transposed_product, wide) != Form::kernel)
    return ops::product(wide, w_OI).to(y.scalar_type());
  // within a backward pass
  auto sizes = y.sizes().vec();
  sizes.back() = size(1);
  const Tensor rows = wide.reshape({-1, y.size(-1)});
  const Tensor x = at::empty({rows.size(0), size(1)}, wide.options());
  multiply_into(x, rows, w_OI);
  return x.view(sizes).to(y.scalar_type());
}

Tensor Storage::heads(const Tensor& x_NHI,
                      const Tensor& bias,
                      const ProductSettings& /*settings*/) const {
  const at::ScalarType type = product_type(x_NHI);
  const int64_t heads = x_NHI.size(1);
  const Tensor w_HOI =
      matrix(x_NHI.device(), type).reshape({heads, size(0) / heads, x_NHI.size(2)});
  Tensor y = ops::einsum("nhi,hoi->nho", x_NHI.to(type), w_HOI);
  if (bias.defined()) {
    const Tensor flat = y.flatten(1);
    y = (flat + over_rows(bias.to(flat.device(), type), flat)).reshape(y.sizes());
  }
  return y.to(x_NHI.scalar_type());
}

Tensor Storage::rows(const Tensor& ids_N) const {
  return at::embedding(decoded(ids_N.device()), ids_N);
}

Tensor Storage::squared_rows() const {
  return tensor().detach().to(at::kDouble).square().sum(-1);
}

}  // namespace tessera::ops
