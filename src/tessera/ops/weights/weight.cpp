#include "tessera/ops/weights/weight.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <functional>
#include <mutex>
#include <optional>

#include "tessera/base/threads.h"
#include "tessera/kernels/weights/blocks.h"
#include "tessera/kernels/weights/quantize.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/basic/over_rows.h"
#include "tessera/ops/light_tensor.h"
#include "tessera/ops/side_by_side.h"
#include "tessera/ops/weights/grouped_product.h"
#include "tessera/ops/weights/product_input.h"
#include "tessera/ops/weights/quantized_operands.h"

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
  if (dtype == DType::f32 && reinterpret_cast<uintptr_t>(data) % alignof(float) == 0)
    w.view_ = tensor_over(data, w.shape_, at::kFloat, owner);
  w.owner_ = std::move(owner);
  return w;
}

Weight Weight::stored(const format::TensorView& view) {
  Weight w = stored(view.name, view.dtype, view.shape, view.data.data(), view.owner);
  if (view.columns == nullptr) return w;
  const int64_t width = view.shape.back();
  require(is_block_type(view.dtype) && view.shape.size() >= 2 &&
              std::ssize(*view.columns) * view.shape[view.shape.size() - 2] == w.elements(),
          "weight", "{}: an order of {} columns of rows of {}", view.name, view.columns->size(),
          width);
  w.columns_ = {view.columns, view.columns->data()};
  return w;
}

/// Lengths of rows, as far as they do not change: W alone, or all.
struct Weight::Adapted::Kept {
  std::mutex mutex;
  Tensor squares, factors;
};

Weight Weight::adapted(WeightPtr w, WeightPtr a, WeightPtr b, double scale, double dropout) {
  return adapted({.w = std::move(w),
                  .a = std::move(a),
                  .b = std::move(b),
                  .scale = scale,
                  .dropout = dropout});
}

Weight Weight::adapted(Adapted parts) {
  const WeightPtr& w = parts.w;
  const std::vector<int64_t>& whole = w->shape();
  const size_t axes = whole.size();
  const auto expect = [&](const WeightPtr& part, const std::vector<int64_t>& shape,
                          std::string_view name) {
    require(part == nullptr || part->shape() == shape, "adapter", "{}: {} [{}] of a weight [{}]",
            w->name(), name,
            part == nullptr ? std::string() : fmt::format("{}", fmt::join(part->shape(), ", ")),
            fmt::join(whole, ", "));
  };
  require((parts.a == nullptr) == (parts.b == nullptr) &&
              (parts.magnitude == nullptr || parts.a != nullptr),
          "adapter", "{}: half a product", w->name());
  if (parts.a != nullptr) {
    require(axes >= 2 && axes <= 3 && parts.a->shape().size() == axes, "adapter",
            "{}: a low-rank update of a weight of {} axes", w->name(), axes);
    std::vector<int64_t> down = whole, up = whole;
    down[axes - 2] = up[axes - 1] = parts.a->shape()[axes - 2];
    expect(parts.a, down, "A");
    expect(parts.b, up, "B");
  }
  std::vector<int64_t> rows = whole, columns = whole;
  if (axes >= 2) {
    rows.pop_back();
    columns.erase(columns.end() - 2);
  }
  expect(parts.magnitude, rows, "magnitudes");
  expect(parts.out, rows, "factors");
  expect(parts.in, columns, "factors of inputs");
  Weight out;
  out.name_ = w->name();
  out.dtype_ = w->dtype();
  out.shape_ = whole;
  parts.kept = std::make_shared<Adapted::Kept>();
  out.adapted_ = std::make_shared<const Adapted>(std::move(parts));
  return out;
}

Tensor Weight::Adapted::input(const Tensor& x, const ProductSettings& settings) const {
  return dropout == 0 || !settings.drop ? x : (*settings.drop)(x, dropout, w->name());
}

std::vector<WeightPtr> Weight::Adapted::all() const {
  std::vector<WeightPtr> out;
  for (const WeightPtr& part : {w, a, b, magnitude, this->out, in, prefix})
    if (part != nullptr) out.push_back(part);
  return out;
}

Weight Weight::converted(DType dtype) const {
  if (kernels::can_quantize(dtype)) return quantized(dtype);
  if (dtype != DType::f32 && dtype != DType::bf16 && dtype != DType::f16)
    fail(ErrorKind::usage, "weight",
         "{}: no form writes {}; expected f32, bf16, f16 or a block type", name_,
         tessera::name_of(dtype));
  const auto numbers = std::make_shared<const Tensor>(
      tensor().detach().to(at::kCPU, scalar_type_of(dtype), false, true).contiguous());
  return stored(name_, dtype, shape_, numbers->const_data_ptr(), numbers);
}

Weight Weight::quantized(DType dtype) const {
  const int32_t block = layout_of(dtype).block_elements;
  if (shape_.empty() || shape_.back() % block != 0)
    fail(ErrorKind::usage, "weight",
         "{}: rows of {} numbers; expected a multiple of {}, a block of {}", name_,
         shape_.empty() ? 1 : shape_.back(), block, tessera::name_of(dtype));
  const Tensor numbers = tensor().detach().to(at::kCPU, at::kFloat).contiguous();
  const auto blocks =
      std::make_shared<const Tensor>(at::empty({storage_bytes(dtype, numbers.numel())}, at::kByte));
  kernels::quantize(dtype, numbers.const_data_ptr<float>(), numbers.numel(),
                    blocks->mutable_data_ptr());
  return stored(name_, dtype, shape_, blocks->const_data_ptr(), blocks);
}

Weight Weight::multiplied_in(kernels::Arithmetic arithmetic) const {
  Weight out = *this;
  out.arithmetic_ = arithmetic;
  return out;
}

Weight Weight::rounded(OperandRounding rounding) const {
  Weight out = *this;
  out.rounding_ = rounding;
  return out;
}

Weight Weight::of_whole_texts() const {
  Weight out = *this;
  out.of_whole_texts_ = true;
  if (adapted_) {
    const auto of = [](const WeightPtr& part) {
      return part == nullptr ? part : std::make_shared<const Weight>(part->of_whole_texts());
    };
    Adapted parts = *adapted_;
    for (WeightPtr* part : {&parts.w, &parts.a, &parts.b}) *part = of(*part);
    out.adapted_ = std::make_shared<const Adapted>(std::move(parts));
  }
  return out;
}

Weight Weight::slice(int64_t index) const {
  require(shape_.size() >= 2 && index >= 0 && index < shape_[0], "weight",
          "{}: slice {} of a weight of {} axes, {} slices", name_, index, shape_.size(),
          shape_.empty() ? 0 : shape_[0]);
  if (adapted_) {
    const auto of = [index](const WeightPtr& part) {
      return part == nullptr ? part : std::make_shared<const Weight>(part->slice(index));
    };
    Adapted parts = *adapted_;
    for (WeightPtr* part : {&parts.w, &parts.a, &parts.b, &parts.magnitude, &parts.out, &parts.in})
      *part = of(*part);
    return adapted(std::move(parts));
  }
  Weight out = *this;
  out.shape_.erase(out.shape_.begin());
  if (view_.defined()) out.view_ = view_.select(0, index);
  if (tensor_.defined())
    out.tensor_ = tensor_.select(0, index);
  else
    out.data_ = static_cast<const char*>(data_) + index * storage_bytes(dtype_, out.elements());
  require(columns_ == nullptr || shape_.size() > 2, "weight", "{}: a row of ordered columns",
          name_);
  if (columns_ != nullptr)
    out.columns_ = {columns_,
                    columns_.get() + index * (out.elements() / out.shape_[out.shape_.size() - 2])};
  return out;
}

at::Device Weight::device() const {
  if (adapted_) return adapted_->w->device();
  return tensor_.defined() ? tensor_.device() : at::Device(at::kCPU);
}

bool Weight::readable_by_kernels() const {
  if (adapted_ || rounding_.ternary || (rounding_.int8 && !kernels::has_codes(dtype_)))
    return false;
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

namespace {

/// n rows of k numbers, in their order, from where they lie in `columns` (null: in their order).
void widen(DType type, const void* data, int64_t n, int64_t k, const int32_t* columns, float* to) {
  if (columns == nullptr) return kernels::dequantize(type, data, n * k, to);
  const int64_t row_bytes = storage_bytes(type, k);
  std::vector<float> row(static_cast<size_t>(k));
  for (int64_t i = 0; i < n; ++i) {
    kernels::dequantize(type, static_cast<const char*>(data) + i * row_bytes, k, row.data());
    out_of_order(row.data(), 1, k, columns, to + i * k);
  }
}

}  // namespace

Tensor Weight::tensor(const ProductSettings& settings) const {
  if (rounding_) {
    check_reads_no_rows(*this);
    return without_rounding(*this).tensor(settings);
  }
  if (tensor_.defined()) return tensor_;
  if (adapted_) {
    if (adapted_->dropout > 0 && settings.drop)
      fail(ErrorKind::usage, "adapter",
           "{} is read as a matrix, without inputs to drop; expected adapter dropout 0", name_);
    Tensor sum = adapted_->w->tensor(settings);
    if (adapted_->a != nullptr && shape_.size() == 3)
      sum = sum + adapted_->scale * at::bmm(adapted_->b->tensor(), adapted_->a->tensor());
    else if (adapted_->a != nullptr)
      // columns of B A, by the products that kernels and gradients share
      sum = sum + adapted_->scale *
                      linear(adapted_->a->tensor().t(), *adapted_->b, nullptr, settings).t();
    const auto by = [&](const Tensor& factors, int64_t axis) {
      sum = sum * (sum.dim() == 1 ? factors : factors.unsqueeze(axis)).to(sum.options());
    };
    if (adapted_->magnitude != nullptr) by(adapted_->row_factors(), -1);
    if (adapted_->out != nullptr) by(adapted_->out->tensor(), -1);
    if (adapted_->in != nullptr) by(adapted_->in->tensor(), -2);
    return sum;
  }
  if (view_.defined()) return view_;
  Tensor out = at::empty(shape_, at::kFloat);
  if (dtype_ == DType::f64) {
    out.copy_(at::from_blob(const_cast<void*>(data_), shape_, at::kDouble));
    return out;
  }
  const int64_t last = shape_.empty() ? 1 : shape_.back();
  const int64_t n_rows = last == 0 ? 0 : elements() / last;
  const int64_t row_bytes = storage_bytes(dtype_, last);
  auto* to = out.data_ptr<float>();
  // rows of one matrix, which have one order
  const int64_t of_matrix = shape_.size() < 2 ? n_rows : shape_[shape_.size() - 2];
  parallel_for(n_rows, 64, [&](int64_t begin, int64_t end) {
    for (int64_t next = begin; begin < end; begin = next) {
      next = std::min(end, (begin / of_matrix + 1) * of_matrix);
      widen(dtype_, static_cast<const char*>(data_) + begin * row_bytes, next - begin, last,
            columns_ == nullptr ? nullptr : columns_.get() + begin / of_matrix * last,
            to + begin * last);
    }
  });
  return out;
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// numbers of a tile of dequantised rows: 1 MiB, which stays in the second cache level
constexpr int64_t kTile = 262'144;

/// Calls body(first row, rows_RI) for tiles of the matrix `data` [O, I], widened to float32,
/// columns in the order in which they lie.
void for_row_tiles(DType type,
                   const void* data,
                   int64_t o,
                   int64_t i,
                   const std::function<void(int64_t, const Tensor&)>& body) {
  const int64_t most = std::clamp<int64_t>(kTile / std::max<int64_t>(1, i), 16, 1024);
  const Tensor tile = at::empty({std::min(o, most), i}, at::kFloat);
  const int64_t row_bytes = storage_bytes(type, i);
  for (int64_t first = 0; first < o; first += most) {
    const Tensor rows = tile.narrow(0, 0, std::min(most, o - first));
    auto* to = rows.data_ptr<float>();
    parallel_for(rows.size(0), 16, [&](int64_t begin, int64_t end) {
      kernels::dequantize(type, static_cast<const char*>(data) + (first + begin) * row_bytes,
                          (end - begin) * i, to + begin * i);
    });
    body(first, rows);
  }
}

/// Whether products with w are computed from where its numbers lie, by the batch-invariant kernels.
bool by_kernel(const Tensor& x, const Weight& w) {
  return x.device().is_cpu() && x.scalar_type() == at::kFloat && w.readable_by_kernels() &&
         kernels::can_dequantize(w.dtype());
}

/// A weight whose numbers are no float32 tensor: recording at::linear would keep a copy of them.
bool frozen_in_storage(const Weight& w) {
  return w.parts() == nullptr && !w.trainable() && w.dtype() != DType::f32 &&
         w.dtype() != DType::f64;
}

/// The rows of x, which `dense` keeps where nothing shares them.
ProductInput rows_of(const Tensor& x,
                     const SharedInput* shared,
                     const Reading& reading,
                     Tensor& dense) {
  if (shared != nullptr) return shared->rows(reading);
  dense = x.contiguous();
  return product_input(dense, reading);
}

/// y [.., O] = x w_OI^T (+ bias_O), dense float32.
void multiply(const ProductInput& x, const Weight& w, const Tensor& bias_O, const Tensor& y) {
  const Tensor b = bias_O.defined() ? bias_O.to(at::kFloat).contiguous() : Tensor();
  const float* bias = b.defined() ? b.const_data_ptr<float>() : nullptr;
  if (w.is_of_whole_texts() && w.dtype() == DType::f32)
    x.times_in_turn(static_cast<const float*>(w.data()), w.size(0), bias, y.data_ptr<float>(),
                    w.size(0));
  else
    x.times(w.dtype(), w.data(), w.size(0), bias, y.data_ptr<float>(), w.size(0));
}

Tensor by_rows(const Tensor& x,
               const SharedInput* shared,
               const Weight& w,
               const Tensor& bias_O,
               kernels::Arithmetic arithmetic) {
  auto sizes = x.sizes().vec();
  sizes.back() = w.size(0);
  Tensor y = at::empty(sizes, x.options());
  Tensor dense;
  multiply(rows_of(x, shared, {arithmetic, w.columns()}, dense), w, bias_O, y);
  return y;
}

/// What a recorded step keeps of a weight.
struct Handle final : torch::CustomClassHolder {
  explicit Handle(Weight w) : weight(std::move(w)) {}
  Weight weight;
  static c10::IValue keep(const Weight& w) {
    return c10::IValue::make_capsule(c10::make_intrusive<Handle>(w));
  }
  static const Weight& kept(const c10::IValue& value) {
    return static_cast<const Handle&>(*value.toCapsule()).weight;
  }
};

/// Rows from which on a product of training is computed from tiles of a stored matrix, as float
/// products are; with fewer rows decoding a tile costs more than it saves. On a Xeon with AMX a
/// step of LoRA on Q4_1 takes the same time in both forms.
constexpr int64_t kTiledRows = 32;

/// y_NO = x_NI w_OI^T (+ bias_O) without a graph, w widened to float32 a tile at a time.
Tensor by_tiles(const Tensor& x, const Weight& w, const Tensor& bias_O) {
  auto sizes = x.sizes().vec();
  sizes.back() = w.size(0);
  const Tensor y = at::empty(sizes, x.options());  // no view, which a step may not write to
  const Tensor x_NI = x.detach().reshape({-1, w.size(1)}), y_NO = y.view({-1, w.size(0)});
  for_row_tiles(w.dtype(), w.data(), w.size(0), w.size(1), [&](int64_t first, const Tensor& tile) {
    multiply_into(y_NO.narrow(1, first, tile.size(0)), x_NI, tile.t());
  });
  if (bias_O.defined()) y_NO.add_(bias_O.detach().to(at::kFloat));
  return y;
}

Tensor frozen_product(const Tensor& x, const Weight& w, const Tensor& bias_O) {
  const bool tiled = x.numel() >= kTiledRows * w.size(1) && w.columns() == nullptr &&
                     kernels::can_dequantize(w.dtype());
  return tiled ? by_tiles(x, w, bias_O)
               : by_rows(x, nullptr, w, bias_O, kernels::Arithmetic::float32);
}

/// linear() through a weight that stays as it is stored.
struct FrozenLinear : torch::autograd::Function<FrozenLinear> {
  static Tensor forward(AutogradContext* context,
                        const Tensor& x,
                        const std::optional<Tensor>& bias,
                        const Weight& w) {
    context->saved_data["w"] = Handle::keep(w);
    context->saved_data["biased"] = bias.has_value();
    return frozen_product(x, w, bias.value_or(Tensor()));
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const Tensor& dy = gradients[0];
    Tensor dx, dbias;
    if (context->needs_input_grad(0))
      dx = transposed_product(dy, Handle::kept(context->saved_data["w"]));
    // given tensors alone are counted
    if (context->saved_data["biased"].toBool() && context->needs_input_grad(1))
      dbias = sum_of_rows(dy);
    return {dx, dbias, Tensor()};
  }
};

}  // namespace

namespace {

/// Squares of the lengths of the rows of a matrix, [O] in double; no float copy of it is made.
Tensor squared_rows(const Weight& w) {
  if (w.dense_tensor().defined() || w.parts() != nullptr)
    return w.tensor().detach().to(at::kDouble).square().sum(-1);
  const Tensor out = at::empty({w.size(0)}, at::kDouble);
  for_row_tiles(w.dtype(), w.data(), w.size(0), w.size(1), [&](int64_t first, const Tensor& tile) {
    out.narrow(0, first, tile.size(0)).copy_(tile.to(at::kDouble).square().sum(-1));
  });
  return out;
}

/// One for each expert, where there are some.
template <class Of>
Tensor each_matrix(const Weight& w, Of of) {
  if (w.shape().size() == 2) return of(-1);
  std::vector<Tensor> out;
  for (int64_t e = 0; e < w.size(0); ++e) out.push_back(of(e));
  return at::stack(out);
}

Weight matrix_of(const Weight& w, int64_t expert) {
  return expert < 0 ? w : w.slice(expert);
}

}  // namespace

/// |w + s b A|^2 = |w|^2 + 2 s b (A w) + s^2 b (A A^T) b of every row w of W and b of B.
Tensor Weight::Adapted::row_factors() const {
  const std::lock_guard lock(kept->mutex);
  const bool fixed = !a->dense_tensor().defined() && !b->dense_tensor().defined() &&
                     !magnitude->dense_tensor().defined();
  if (kept->factors.defined()) return kept->factors;
  Tensor lengths;
  {
    const at::NoGradGuard constant;
    Tensor squares = kept->squares;
    if (!squares.defined())
      squares = each_matrix(
          *w, [&](int64_t e) { return squared_rows(without_rounding(matrix_of(*w, e))); });
    if (!w->trainable() && w->parts() == nullptr) kept->squares = squares;
    const Tensor more = each_matrix(*w, [&](int64_t e) {
      const Weight own =
          without_rounding(matrix_of(*w, e)).multiplied_in(kernels::Arithmetic::float32);
      const Tensor a_RI = matrix_of(*a, e).tensor(), b_OR = matrix_of(*b, e).tensor();
      const Tensor met_OR = linear(a_RI, own).t().to(at::kDouble), b = b_OR.to(at::kDouble),
                   wide = a_RI.to(at::kDouble);
      return (b * (2 * scale * met_OR + scale * scale * b.matmul(wide.matmul(wide.t())))).sum(-1);
    });
    lengths = (squares.to(more.device()) + more).clamp_min(1e-24).sqrt();
  }
  const Tensor rows = magnitude->tensor();
  const Tensor factors = rows / lengths.to(rows.options());
  if (fixed) kept->factors = factors;
  return factors;
}

Tensor transposed_product(const Tensor& y, const Weight& w) {
  require(y.size(-1) == w.size(0), "linear", "{}: {} outputs, the weight has [{}, {}]", w.name(),
          y.size(-1), w.size(0), w.size(1));
  check_reads_no_rows(w);
  if (const Weight::Adapted* parts = w.parts()) {
    Tensor g = y;
    if (parts->out != nullptr) g = g * parts->out->tensor().to(g.options());
    if (parts->magnitude != nullptr) g = g * parts->row_factors().to(g.options());
    Tensor x = transposed_product(g, *parts->w);
    if (parts->a != nullptr)
      x = x + parts->scale * transposed_product(transposed_product(g, *parts->b), *parts->a);
    return parts->in == nullptr ? x : x * parts->in->tensor().to(x.options());
  }
  const Tensor rows = y.reshape({-1, y.size(-1)});
  auto sizes = y.sizes().vec();
  sizes.back() = w.size(1);
  if (!frozen_in_storage(w) || !by_kernel(y, w)) {
    const auto type = widen_products(y) ? at::kFloat : y.scalar_type();
    const Tensor matrix = w.tensor().to(y.device(), type);
    if (!y.device().is_cpu() || type != at::kFloat || at::GradMode::is_enabled())
      return product(y.to(type), matrix).to(y.scalar_type());
    // within a backward pass
    const Tensor x = at::empty({rows.size(0), w.size(1)}, y.options().dtype(type));
    multiply_into(x, rows.to(type), matrix);
    return x.view(sizes).to(y.scalar_type());
  }
  const Tensor x = at::zeros({rows.size(0), w.size(1)}, y.options());
  for_row_tiles(w.dtype(), w.data(), w.size(0), w.size(1), [&](int64_t first, const Tensor& tile) {
    multiply_into(x, rows.narrow(1, first, tile.size(0)), tile, /*add=*/true);
  });
  if (w.columns() == nullptr) return x.view(sizes);
  const Tensor plain = at::empty_like(x);
  out_of_order(x.const_data_ptr<float>(), x.size(0), x.size(1), w.columns(),
               plain.data_ptr<float>());
  return plain.view(sizes);
}

namespace {

/// The same factors for every row of y.
Tensor by_columns(const Tensor& y, const Tensor& factors) {
  return y * over_rows(factors.to(y.options()), y);
}

/// Whether an operand is rounded before the product, not by its kernel.
bool rounds_before(const Tensor& x, const Weight& w) {
  return w.rounding() && (at::GradMode::is_enabled() || !by_kernel(x, w));
}

Tensor rounded_input(const Tensor& x, const Weight& w) {
  return w.rounding().int8 ? int8_rows(x) : x;
}

Tensor linear_of(const Tensor& x,
                 const SharedInput* shared,
                 const Weight& w,
                 const Weight* bias,
                 const ProductSettings& settings);

Tensor adapted_linear(const Tensor& x,
                      const SharedInput* shared,
                      const Weight::Adapted& parts,
                      const Weight* bias,
                      const ProductSettings& settings) {
  const Tensor input = parts.in == nullptr ? x : by_columns(x, parts.in->tensor());
  const bool scaled = parts.magnitude != nullptr || parts.out != nullptr;
  const auto times = [&](const Tensor& rows, const Weight& w, const Weight* b = nullptr) {
    return linear_of(rows, rows.is_same(x) ? shared : nullptr, w, b, settings);
  };
  Tensor y = times(input, *parts.w, scaled ? nullptr : bias);
  if (parts.a != nullptr) {
    const Tensor read = parts.input(input, settings);
    const Tensor low = parts.scale * times(times(read, *parts.a), *parts.b);
    if (parts.magnitude == nullptr) {
      y = y + low;
    } else if (const Tensor factors = parts.row_factors(); read.is_same(input)) {
      y = by_columns(y + low, factors);
    } else {
      // W itself reads all of x, what changes it what is left
      y = y + by_columns(times(read, *parts.w), factors - 1) + by_columns(low, factors);
    }
  }
  if (parts.out != nullptr) y = by_columns(y, parts.out->tensor());
  if (!scaled || bias == nullptr) return y;
  return y + over_rows(bias->tensor().to(y.options()), y);
}

Tensor linear_of(const Tensor& x,
                 const SharedInput* shared,
                 const Weight& w,
                 const Weight* bias,
                 const ProductSettings& settings) {
  require(x.size(-1) == w.size(1), "linear", "{}: input has {} channels, the weight [{}, {}]",
          w.name(), x.size(-1), w.size(0), w.size(1));
  if (const Weight::Adapted* parts = w.parts())
    return adapted_linear(x, shared, *parts, bias, settings);
  if (rounds_before(x, w))
    return linear_of(rounded_input(x, w), nullptr, without_rounding(w), bias, settings);
  const Tensor b_O = bias != nullptr ? bias->tensor() : Tensor();
  if (by_kernel(x, w)) {
    if (!at::GradMode::is_enabled()) return by_rows(x, shared, w, b_O, arithmetic_of(w));
    if (frozen_in_storage(w))
      return FrozenLinear::apply(x, b_O.defined() ? std::optional<Tensor>(b_O) : std::nullopt, w);
  }
  const auto product_type = widen_products(x) ? at::kFloat : x.scalar_type();
  const Tensor matrix = w.tensor().to(x.device(), product_type);
  const Tensor b = b_O.defined() ? b_O.to(x.device(), product_type) : Tensor();
  const Tensor input = x.to(product_type);
  if (product_type == at::kDouble && input.device().is_cpu() && at::GradMode::is_enabled()) {
    const Tensor y = product(input, matrix.t());
    return b.defined() ? y + spread(b, y) : y;
  }
  if (product_type != at::kFloat || !at::GradMode::is_enabled() ||
      (!input.is_cpu() && settings.type == ProductType::float32))
    return at::linear(input, matrix, b).to(x.scalar_type());
  const bool in_place = settings.gradients_in_place && input.is_cpu() && input.dim() == 2 &&
                        matrix.is_leaf() && matrix.requires_grad() &&
                        matrix.is_same(w.dense_tensor());
  const ProductType type = settings.type;
  const Tensor y = in_place                       ? product_in_place(input, matrix, type)
                   : type == ProductType::float32 ? product(input, matrix.t())
                                                  : rounded_product(input, matrix.t(), type);
  return (b.defined() ? y + over_rows(b, y) : y).to(x.scalar_type());
}

}  // namespace

Tensor linear(const Tensor& x,
              const Weight& w,
              const Weight* bias,
              const ProductSettings& settings) {
  return linear_of(x, nullptr, w, bias, settings);
}

Tensor linear(const SharedInput& x,
              const Weight& w,
              const Weight* bias,
              const ProductSettings& settings) {
  return linear_of(x, &x, w, bias, settings);
}

namespace {

void check_groups(const Tensor& x_NI, const Weight& w_EOI, const std::vector<int64_t>& offsets) {
  require(w_EOI.shape().size() == 3 && x_NI.dim() == 2 && x_NI.size(1) == w_EOI.size(2),
          "grouped_linear", "{}: inputs of {} channels, a weight of {} axes", w_EOI.name(),
          x_NI.size(-1), w_EOI.shape().size());
  require(static_cast<int64_t>(offsets.size()) == w_EOI.size(0) + 1 && offsets.front() == 0 &&
              offsets.back() == x_NI.size(0) && std::is_sorted(offsets.begin(), offsets.end()),
          "grouped_linear", "{}: {} offsets from {} to {}; expected {} that rise from 0 to {}",
          w_EOI.name(), offsets.size(), offsets.front(), offsets.back(), w_EOI.size(0) + 1,
          x_NI.size(0));
}

/// Calls body(expert, its rows' begin, their number) for experts that have rows.
template <class Body>
void for_experts(const std::vector<int64_t>& offsets, Body body) {
  for (size_t e = 0; e + 1 < offsets.size(); ++e)
    if (offsets[e + 1] > offsets[e])
      body(static_cast<int64_t>(e), offsets[e], offsets[e + 1] - offsets[e]);
}

Tensor grouped_by_rows(const Tensor& x_NI,
                       const SharedInput* shared,
                       const Weight& w,
                       const std::vector<int64_t>& offsets,
                       const Tensor& bias_EO,
                       kernels::Arithmetic arithmetic) {
  const Tensor dense = x_NI.contiguous();
  Tensor y_NO = at::empty({x_NI.size(0), w.size(1)}, x_NI.options());
  // each expert reads its rows in an order of its own, where columns have one
  std::optional<ProductInput> all;
  if (w.columns() == nullptr)
    all = shared != nullptr ? shared->rows({arithmetic}) : product_input(dense, {arithmetic});
  struct Rows {
    int64_t expert, begin, n;
  };
  std::vector<Rows> experts;
  std::vector<int64_t> costs;
  for_experts(offsets, [&](int64_t e, int64_t begin, int64_t n) {
    experts.push_back({e, begin, n});
    // reading a matrix costs as much as a few rows
    costs.push_back(n + 4);
  });
  side_by_side(costs, [&](size_t i) {
    const auto& [e, begin, n] = experts[i];
    const Weight expert = w.slice(e);
    const int64_t k = dense.size(1);
    multiply(all ? all->rows(begin, n)
                 : ProductInput(dense.const_data_ptr<float>() + begin * k, n, k, k,
                                {arithmetic, expert.columns()}),
             expert, bias_EO.defined() ? bias_EO.select(0, e) : Tensor(), y_NO.narrow(0, begin, n));
  });
  return y_NO;
}

/// grouped_linear() in float32 on a CPU. The weight's own gradient is asked for where it is
/// trainable; w_EOI is its tensor, for autograd alone.
struct Grouped : torch::autograd::Function<Grouped> {
  static Tensor forward(AutogradContext* context,
                        const Tensor& x_NI,
                        const std::optional<Tensor>& w_EOI,
                        const std::optional<Tensor>& bias_EO,
                        const Weight& w,
                        const std::vector<int64_t>& offsets,
                        ProductType of_trainable) {
    context->save_for_backward({x_NI});
    context->saved_data["w"] = Handle::keep(w);
    context->saved_data["offsets"] = offsets;
    context->saved_data["dense"] = w_EOI.has_value();
    context->saved_data["biased"] = bias_EO.has_value();
    // through weights that stay as they are stored the gradient is exact
    const ProductType type = w_EOI ? of_trainable : ProductType::float32;
    context->saved_data["type"] = static_cast<int64_t>(type);
    if (!w_EOI || w.dtype() != DType::f32)
      return grouped_by_rows(x_NI, nullptr, w, offsets, bias_EO.value_or(Tensor()),
                             kernels::Arithmetic::float32);
    const Tensor y_NO = at::empty({x_NI.size(0), w.size(1)}, x_NI.options());
    std::vector<ProductInto> products;
    for_experts(offsets, [&](int64_t e, int64_t begin, int64_t n) {
      products.push_back({y_NO.narrow(0, begin, n), x_NI.detach().narrow(0, begin, n),
                          w_EOI->detach().select(0, e).t()});
    });
    multiply_each(products, type);
    if (bias_EO)
      for_experts(offsets, [&](int64_t e, int64_t begin, int64_t n) {
        y_NO.narrow(0, begin, n).add_(bias_EO->detach().select(0, e));
      });
    return y_NO;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const Tensor dy_NO = gradients[0].contiguous(), x_NI = context->get_saved_variables()[0];
    const Weight& w = Handle::kept(context->saved_data["w"]);
    const std::vector<int64_t> offsets = context->saved_data["offsets"].toIntVector();
    Tensor dx, dw, db;
    if (context->needs_input_grad(0)) dx = at::empty(x_NI.sizes(), x_NI.options());
    // given tensors alone are counted
    const bool dense = context->saved_data["dense"].toBool();
    if (dense && context->needs_input_grad(1)) dw = at::empty(w.shape(), dy_NO.options());
    if (context->saved_data["biased"].toBool() && context->needs_input_grad(dense ? 2 : 1))
      db = at::zeros({w.size(0), w.size(1)}, dy_NO.options());
    const auto type = static_cast<ProductType>(context->saved_data["type"].toInt());
    std::vector<ProductInto> products;
    for_experts(offsets, [&](int64_t e, int64_t begin, int64_t n) {
      const Tensor dy = dy_NO.narrow(0, begin, n);
      if (dx.defined() && dense && w.dtype() == DType::f32)
        products.push_back({dx.narrow(0, begin, n), dy, w.dense_tensor().detach().select(0, e)});
      else if (dx.defined())
        dx.narrow(0, begin, n).copy_(transposed_product(dy, w.slice(e)));
      if (dw.defined())
        products.push_back({dw.select(0, e), dy.t(), x_NI.detach().narrow(0, begin, n)});
      if (db.defined()) db.select(0, e).copy_(sum_of_rows(dy));
    });
    multiply_each(products, type);
    for (size_t e = 0; dw.defined() && e + 1 < offsets.size(); ++e)
      if (offsets[e] == offsets[e + 1]) dw.select(0, static_cast<int64_t>(e)).zero_();
    return {dx, dw, db, Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

namespace {

/// y, rows sorted by expert, by the factors of each row's expert.
Tensor by_expert(const Tensor& y, const Tensor& factors_EC, const std::vector<int64_t>& offsets) {
  std::vector<Tensor> out;
  for_experts(offsets, [&](int64_t e, int64_t begin, int64_t n) {
    out.push_back(by_columns(y.narrow(0, begin, n), factors_EC.select(0, e)));
  });
  return out.empty() ? y : at::cat(out);
}

Tensor groups_of(const Tensor& x_NI,
                 const SharedInput* shared,
                 const Weight& w_EOI,
                 const std::vector<int64_t>& offsets,
                 const Weight* bias_EO,
                 const ProductSettings& settings);

Tensor adapted_groups(const Tensor& x_NI,
                      const SharedInput* shared,
                      const Weight::Adapted& parts,
                      const std::vector<int64_t>& offsets,
                      const Weight* bias_EO,
                      const ProductSettings& settings) {
  const Tensor input = parts.in == nullptr ? x_NI : by_expert(x_NI, parts.in->tensor(), offsets);
  const bool scaled = parts.magnitude != nullptr || parts.out != nullptr;
  const auto times = [&](const Tensor& rows, const Weight& w, const Weight* b = nullptr) {
    return groups_of(rows, rows.is_same(x_NI) ? shared : nullptr, w, offsets, b, settings);
  };
  Tensor y = times(input, *parts.w, scaled ? nullptr : bias_EO);
  if (parts.a != nullptr) {
    const Tensor read = parts.input(input, settings);
    const Tensor low = parts.scale * times(times(read, *parts.a), *parts.b);
    if (parts.magnitude == nullptr) {
      y = y + low;
    } else if (const Tensor factors = parts.row_factors(); read.is_same(input)) {
      y = by_expert(y + low, factors, offsets);
    } else {
      y = y + by_expert(times(read, *parts.w), factors - 1, offsets) +
          by_expert(low, factors, offsets);
    }
  }
  if (parts.out != nullptr) y = by_expert(y, parts.out->tensor(), offsets);
  if (!scaled || bias_EO == nullptr) return y;
  std::vector<Tensor> biased;
  for_experts(offsets, [&](int64_t e, int64_t begin, int64_t n) {
    const Tensor own = y.narrow(0, begin, n);
    biased.push_back(own + over_rows(bias_EO->tensor().select(0, e).to(own.options()), own));
  });
  return biased.empty() ? y : at::cat(biased);
}

Tensor groups_of(const Tensor& x_NI,
                 const SharedInput* shared,
                 const Weight& w_EOI,
                 const std::vector<int64_t>& offsets,
                 const Weight* bias_EO,
                 const ProductSettings& settings) {
  check_groups(x_NI, w_EOI, offsets);
  if (const Weight::Adapted* parts = w_EOI.parts())
    return adapted_groups(x_NI, shared, *parts, offsets, bias_EO, settings);
  if (rounds_before(x_NI, w_EOI))
    return groups_of(rounded_input(x_NI, w_EOI), nullptr, without_rounding(w_EOI), offsets, bias_EO,
                     settings);
  const Tensor b_EO = bias_EO != nullptr ? bias_EO->tensor() : Tensor();
  if (by_kernel(x_NI, w_EOI)) {
    if (!at::GradMode::is_enabled())
      return grouped_by_rows(x_NI, shared, w_EOI, offsets, b_EO, arithmetic_of(w_EOI));
    const auto given = [](const Tensor& t) {
      return t.defined() ? std::optional<Tensor>(t) : std::nullopt;
    };
    return Grouped::apply(x_NI, given(w_EOI.dense_tensor()), given(b_EO), w_EOI, offsets,
                          settings.type);
  }
  std::vector<Tensor> parts;
  for_experts(offsets, [&](int64_t e, int64_t begin, int64_t n) {
    Tensor y = linear(x_NI.narrow(0, begin, n), w_EOI.slice(e), nullptr, settings);
    parts.push_back(b_EO.defined() ? y + b_EO.select(0, e).to(y.device(), y.scalar_type()) : y);
  });
  return parts.empty() ? at::empty({0, w_EOI.size(1)}, x_NI.options()) : at::cat(parts);
}

}  // namespace

Tensor grouped_linear(const Tensor& x_NI,
                      const Weight& w_EOI,
                      const std::vector<int64_t>& offsets,
                      const Weight* bias_EO,
                      const ProductSettings& settings) {
  return groups_of(x_NI, nullptr, w_EOI, offsets, bias_EO, settings);
}

Tensor grouped_linear(const SharedInput& x_NI,
                      const Weight& w_EOI,
                      const std::vector<int64_t>& offsets,
                      const Weight* bias_EO,
                      const ProductSettings& settings) {
  return groups_of(x_NI, &x_NI, w_EOI, offsets, bias_EO, settings);
}

Tensor prefixed(const Tensor& y, const Weight& w, const Tensor& positions_N) {
  const Weight::Adapted* parts = w.parts();
  while (parts != nullptr && parts->prefix == nullptr) parts = parts->w->parts();
  if (parts == nullptr) return y;
  const Tensor positions = positions_N.to(y.device());
  const Tensor own = (positions < parts->prefix->size(0)).nonzero().squeeze(1);
  if (own.numel() == 0) return y;
  std::vector<int64_t> shape = y.sizes().vec();
  shape[0] = own.numel();
  const Tensor rows =
      at::embedding(parts->prefix->tensor().to(y.options()), positions.index_select(0, own));
  return y.index_copy(0, own, rows.reshape(shape));
}

namespace {

/// Rows of W + scale B A, without the sum of the whole.
Tensor adapted_rows(const Weight::Adapted& parts,
                    const Tensor& ids_N,
                    const ProductSettings& settings) {
  const Tensor low = rows(*parts.b, ids_N, settings);
  const Weight a_DR = Weight::dense(parts.a->name(), parts.a->tensor().t().contiguous());
  return rows(*parts.w, ids_N, settings) + parts.scale * linear(low, a_DR, nullptr, settings);
}

}  // namespace

Tensor rows(const Weight& w, const Tensor& ids_N, const ProductSettings& settings) {
  if (const Weight::Adapted* parts = w.parts()) {
    if (parts->prefix != nullptr) return rows(*parts->w, ids_N, settings);
    if (parts->magnitude == nullptr && parts->out == nullptr && parts->in == nullptr)
      return adapted_rows(*parts, ids_N, settings);
  }
  const int64_t n = ids_N.numel(), d = w.size(1), limit = w.size(0);
  const bool dense = w.dense_tensor().defined() || w.parts() != nullptr;
  Tensor ids;
  if (ids_N.device().is_cpu() || !dense) {
    ids = ids_N.to(at::kCPU, at::kLong).contiguous();
    const auto* id = ids.const_data_ptr<int64_t>();
    const auto* wrong = std::find_if(id, id + n, [&](int64_t i) { return i < 0 || i >= limit; });
    if (wrong != id + n)
      fail(ErrorKind::input, "embedding", "{}: id {} is out of range; expected 0 to {}", w.name(),
           *wrong, limit - 1);
  }
  if (dense) return at::embedding(w.tensor(settings), ids_N);
  // only the rows asked for are dequantised
  Tensor out = at::empty({n, d}, at::kFloat);
  const int64_t row_bytes = storage_bytes(w.dtype(), d);
  for (int64_t i = 0; i < n; ++i)
    widen(w.dtype(),
          static_cast<const char*>(w.data()) + ids.const_data_ptr<int64_t>()[i] * row_bytes, 1, d,
          w.columns(), out.data_ptr<float>() + i * d);
  return out;
}

}  // namespace tessera::ops
