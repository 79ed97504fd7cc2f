#include "tessera/ops/weights/weight.h"

#include "tessera/base/threads.h"
#include "tessera/kernels/weights/blocks.h"
#include "tessera/kernels/weights/matmul.h"

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

Weight Weight::dense(std::string name, Tensor tensor) {
  Weight w;
  w.name_ = std::move(name);
  w.dtype_ = dtype_of(tensor.scalar_type());
  w.shape_ = tensor.sizes().vec();
  w.tensor_ = std::move(tensor);
  return w;
}

Weight Weight::stored(std::string name,
                      DType dtype,
                      std::vector<int64_t> shape,
                      const void* data,
                      std::shared_ptr<const void> owner) {
  Weight w;
  w.name_ = std::move(name);
  w.dtype_ = dtype;
  w.shape_ = std::move(shape);
  w.data_ = data;
  w.owner_ = std::move(owner);
  return w;
}

Weight Weight::adapted(WeightPtr w, WeightPtr a, WeightPtr b) {
  require(w->shape().size() == 2 && a->size(1) == w->size(1) && b->size(0) == w->size(0) &&
              b->size(1) == a->size(0),
          "adapter", "{}: [{}, {}] and [{}, {}] beside a weight of {} axes", w->name(), a->size(0),
          a->size(1), b->size(0), b->size(1), w->shape().size());
  Weight out;
  out.name_ = w->name();
  out.dtype_ = w->dtype();
  out.shape_ = w->shape();
  out.adapted_ = std::make_shared<const Adapted>(Adapted{std::move(w), std::move(a), std::move(b)});
  return out;
}

bool Weight::readable_by_kernels() const {
  if (adapted_) return false;
  return !tensor_.defined() || (tensor_.device().is_cpu() && tensor_.is_contiguous());
}

int64_t Weight::elements() const {
  int64_t n = 1;
  for (const int64_t size : shape_) n *= size;
  return n;
}

const void* Weight::data() const {
  return tensor_.defined() ? tensor_.const_data_ptr() : data_;
}

Tensor Weight::tensor() const {
  if (tensor_.defined()) return tensor_;
  // columns of B A, by the products that kernels and gradients share
  if (adapted_) return adapted_->w->tensor() + linear(adapted_->a->tensor().t(), *adapted_->b).t();
  if (dtype_ == DType::f32 && reinterpret_cast<uintptr_t>(data_) % alignof(float) == 0) {
    auto owner = owner_;
    return at::from_blob(
        const_cast<void*>(data_), shape_, [owner](void*) {}, at::kFloat);
  }
  Tensor out = at::empty(shape_, at::kFloat);
  if (dtype_ == DType::f64) {
    out.copy_(at::from_blob(const_cast<void*>(data_), shape_, at::kDouble));
    return out;
  }
  const int64_t last = shape_.empty() ? 1 : shape_.back();
  const int64_t n_rows = last == 0 ? 0 : elements() / last;
  const int64_t row_bytes = storage_bytes(dtype_, last);
  auto* to = out.data_ptr<float>();
  parallel_for(n_rows, 64, [&](int64_t begin, int64_t end) {
    kernels::dequantize(dtype_, static_cast<const char*>(data_) + begin * row_bytes,
                        (end - begin) * last, to + begin * last);
  });
  return out;
}

Tensor linear(const Tensor& x, const Weight& w, const Weight* bias) {
  require(x.size(-1) == w.size(1), "linear", "{}: input has {} channels, the weight [{}, {}]",
          w.name(), x.size(-1), w.size(0), w.size(1));
  if (const Weight::Adapted* parts = w.parts())
    return linear(x, *parts->w, bias) + linear(linear(x, *parts->a), *parts->b);
  if (use_kernels(x) && w.readable_by_kernels() && kernels::can_dequantize(w.dtype())) {
    const Tensor input = x.contiguous();
    const int64_t rows = input.numel() / w.size(1);
    auto sizes = x.sizes().vec();
    sizes.back() = w.size(0);
    Tensor y = at::empty(sizes, x.options());
    const Tensor b = bias != nullptr ? bias->tensor().to(at::kFloat).contiguous() : Tensor();
    kernels::matmul(input.const_data_ptr<float>(), rows, w.size(1), w.size(1), w.dtype(), w.data(),
                    w.size(0), b.defined() ? b.const_data_ptr<float>() : nullptr,
                    y.data_ptr<float>(), w.size(0));
    return y;
  }
  const auto product_type = widen_products(x) ? at::kFloat : x.scalar_type();
  const Tensor matrix = w.tensor().to(x.device(), product_type);
  const Tensor b = bias != nullptr ? bias->tensor().to(x.device(), product_type) : Tensor();
  return at::linear(x.to(product_type), matrix, b).to(x.scalar_type());
}

Tensor rows(const Weight& w, const Tensor& ids_N) {
  const int64_t n = ids_N.numel(), d = w.size(1), limit = w.size(0);
  if (n > 0 && ids_N.device().is_cpu()) {
    const auto [low, high] = at::aminmax(ids_N);
    if (low.item<int64_t>() < 0 || high.item<int64_t>() >= limit)
      fail(ErrorKind::input, "embedding", "{}: id {} is out of range; expected 0 to {}", w.name(),
           low.item<int64_t>() < 0 ? low.item<int64_t>() : high.item<int64_t>(), limit - 1);
  }
  if (w.dense_tensor().defined()) return at::embedding(w.dense_tensor(), ids_N);
  if (w.parts() != nullptr) return at::embedding(w.tensor(), ids_N);
  // only the rows asked for are dequantised
  const Tensor ids = ids_N.to(at::kLong).contiguous();
  Tensor out = at::empty({n, d}, at::kFloat);
  const int64_t row_bytes = storage_bytes(w.dtype(), d);
  for (int64_t i = 0; i < n; ++i)
    kernels::dequantize(
        w.dtype(),
        static_cast<const char*>(w.data()) + ids.const_data_ptr<int64_t>()[i] * row_bytes, d,
        out.data_ptr<float>() + i * d);
  return out;
}

}  // namespace tessera::ops
