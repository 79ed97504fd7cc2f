#include "tessera/ops/weights/kernel_storage.h"

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>

#include "tessera/base/threads.h"
#include "tessera/kernels/weights/blocks.h"
#include "tessera/ops/basic/over_rows.h"
#include "tessera/ops/form.h"
#include "tessera/ops/side_by_side.h"
#include "tessera/ops/weights/grouped_product.h"
#include "tessera/ops/weights/product_input.h"
#include "tessera/ops/weights/storage_handle.h"

namespace tessera::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// numbers of a tile of dequantised rows: 1 MiB, which stays in the second cache level
constexpr int64_t kTile = 262'144;

/// Rows from which on a product of training is computed from tiles of a stored matrix, as float
/// products are; with fewer rows decoding a tile costs more than it saves. On a Xeon with AMX a
/// step of LoRA on Q4_1 takes the same time in both forms.
constexpr int64_t kTiledRows = 32;

/// A matrix [rows, ..] as it lies.
struct LyingMatrix {
  DType type;
  const void* data;
  int64_t rows;
};

/// y [.., O] = x w_OI^T (+ bias_O), dense float32.
void multiply(const ProductInput& x,
              const LyingMatrix& w,
              const Tensor& bias_O,
              bool whole_texts,
              const Tensor& y) {
  const Tensor b = bias_O.defined() ? bias_O.to(at::kFloat).contiguous() : Tensor();
  const float* bias = b.defined() ? b.const_data_ptr<float>() : nullptr;
  if (whole_texts && w.type == DType::f32)
    x.times_in_turn(static_cast<const float*>(w.data), w.rows, bias, y.data_ptr<float>(), w.rows);
  else
    x.times(w.type, w.data, w.rows, bias, y.data_ptr<float>(), w.rows);
}

std::optional<Tensor> if_defined(const Tensor& t) {
  return t.defined() ? std::optional<Tensor>(t) : std::nullopt;
}

}  // namespace

bool KernelStorage::by_kernel(const Tensor& x) const {
  const Form form = form_of(Op::product, x);
  return (form == Form::kernel || form == Form::learning) && x.scalar_type() == at::kFloat &&
         lies_in_rows() && kernels::can_dequantize(dtype());
}

const void* KernelStorage::row(int64_t index) const {
  return static_cast<const char*>(data()) + index * storage_bytes(dtype(), shape().back());
}

void KernelStorage::for_row_tiles(const std::function<void(int64_t, const Tensor&)>& body) const {
  const int64_t o = size(0), i = size(1);
  const int64_t most = std::clamp<int64_t>(kTile / std::max<int64_t>(1, i), 16, 1024);
  const Tensor tile = at::empty({std::min(o, most), i}, at::kFloat);
  for (int64_t first = 0; first < o; first += most) {
    const Tensor rows = tile.narrow(0, 0, std::min(most, o - first));
    auto* to = rows.data_ptr<float>();
    parallel_for(rows.size(0), 16, [&](int64_t begin, int64_t end) {
      kernels::dequantize(dtype(), row(first + begin), (end - begin) * i, to + begin * i);
    });
    body(first, rows);
  }
}

Tensor KernelStorage::by_rows(const Tensor& x,
                              const SharedInput* shared,
                              const Tensor& bias_O,
                              const ProductSettings& settings) const {
  auto sizes = x.sizes().vec();
  sizes.back() = size(0);
  Tensor y = at::empty(sizes, x.options());
  const Reading reading{kernels::arithmetic_of(dtype(), size(1), settings.arithmetic), columns()};
  Tensor dense;  // the rows of x where nothing shares them
  if (shared == nullptr) dense = x.contiguous();
  multiply(shared != nullptr ? shared->rows(reading) : product_input(dense, reading),
           {dtype(), data(), size(0)}, bias_O, settings.whole_texts, y);
  return y;
}

Tensor KernelStorage::by_tiles(const Tensor& x, const Tensor& bias_O) const {
  auto sizes = x.sizes().vec();
  sizes.back() = size(0);
  const Tensor y = at::empty(sizes, x.options());  // no view, which a step may not write to
  const Tensor x_NI = x.detach().reshape({-1, size(1)}), y_NO = y.view({-1, size(0)});
  for_row_tiles([&](int64_t first, const Tensor& tile) {
    multiply_into(y_NO.narrow(1, first, tile.size(0)), x_NI, tile.t());
  });
  if (bias_O.defined()) y_NO.add_(bias_O.detach().to(at::kFloat));
  return y;
}

Tensor KernelStorage::unrecorded_product(const Tensor& x, const Tensor& bias_O) const {
  const bool tiled = x.numel() >= kTiledRows * size(1) && columns() == nullptr;
  return tiled ? by_tiles(x, bias_O) : by_rows(x, nullptr, bias_O, {});
}

Tensor KernelStorage::product(const Tensor& x,
                              const SharedInput* shared,
                              const Tensor& bias_O,
                              const ProductSettings& settings) const {
  if (by_kernel(x)) {
    if (!at::GradMode::is_enabled()) return by_rows(x, shared, bias_O, settings);
    if (is_encoded()) return constant_product(x, bias_O);
  }
  return Storage::product(x, shared, bias_O, settings);
}

Tensor KernelStorage::transposed(const Tensor& y) const {
  if (!is_encoded() || !by_kernel(y)) return Storage::transposed(y);
  const Tensor rows = y.reshape({-1, y.size(-1)});
  auto sizes = y.sizes().vec();
  sizes.back() = size(1);
  const Tensor x = at::zeros({rows.size(0), size(1)}, y.options());
  for_row_tiles([&](int64_t first, const Tensor& tile) {
    multiply_into(x, rows.narrow(1, first, tile.size(0)), tile, /*add=*/true);
  });
  if (columns() == nullptr) return x.view(sizes);
  const Tensor plain = at::empty_like(x);
  out_of_order(x.const_data_ptr<float>(), x.size(0), x.size(1), columns(), plain.data_ptr<float>());
  return plain.view(sizes);
}

Tensor KernelStorage::heads(const Tensor& x_NHI,
                            const Tensor& bias,
                            const ProductSettings& settings) const {
  if (form_of(Op::head_product, x_NHI) != Form::kernel || !by_kernel(x_NHI))
    return Storage::heads(x_NHI, bias, settings);
  const int64_t n = x_NHI.size(0), heads = x_NHI.size(1), in = x_NHI.size(2);
  const int64_t out = size(0) / heads;
  const Tensor x = x_NHI.stride(2) == 1 ? x_NHI : x_NHI.contiguous();
  const Tensor b = bias.defined() ? bias.to(at::kFloat).contiguous() : Tensor();
  const Reading reading{kernels::arithmetic_of(dtype(), in, settings.arithmetic), columns()};
  Tensor y = at::empty({n, heads, out}, x.options());
  for (int64_t h = 0; h < heads; ++h)
    ProductInput(x.const_data_ptr<float>() + h * x.stride(1), n, in, x.stride(0), reading)
        .times(dtype(), row(h * out), out,
               b.defined() ? b.const_data_ptr<float>() + h * out : nullptr,
               y.data_ptr<float>() + h * out, heads * out);
  return y;
}

Tensor KernelStorage::squared_rows() const {
  if (dense().defined()) return Storage::squared_rows();
  const Tensor out = at::empty({size(0)}, at::kDouble);
  for_row_tiles([&](int64_t first, const Tensor& tile) {
    out.narrow(0, first, tile.size(0)).copy_(tile.to(at::kDouble).square().sum(-1));
  });
  return out;
}

Tensor KernelStorage::grouped_by_rows(const Tensor& x_NI,
                                      const SharedInput* shared,
                                      const std::vector<int64_t>& offsets,
                                      const Tensor& bias_EO,
                                      const ProductSettings& settings) const {
  const Tensor dense = x_NI.contiguous();
  const int64_t out = size(1), in = size(2);
  const kernels::Arithmetic arithmetic = kernels::arithmetic_of(dtype(), in, settings.arithmetic);
  Tensor y_NO = at::empty({x_NI.size(0), out}, x_NI.options());
  // each expert reads its rows in an order of its own, where columns have one
  std::optional<ProductInput> all;
  if (columns() == nullptr)
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
    multiply(all ? all->rows(begin, n)
                 : ProductInput(dense.const_data_ptr<float>() + begin * in, n, in, in,
                                {arithmetic, columns() + e * in}),
             {dtype(), row(e * out), out}, bias_EO.defined() ? bias_EO.select(0, e) : Tensor(),
             settings.whole_texts, y_NO.narrow(0, begin, n));
  });
  return y_NO;
}

/// grouped() where gradients are recorded. The numbers' own gradient is asked for where they are
/// trainable; w_EOI is their tensor, for autograd alone.
struct KernelStorage::GroupedProduct : torch::autograd::Function<GroupedProduct> {
  static Tensor forward(AutogradContext* context,
                        const Tensor& x_NI,
                        const std::optional<Tensor>& w_EOI,
                        const std::optional<Tensor>& bias_EO,
                        const StoragePtr& storage,
                        const std::vector<int64_t>& offsets,
                        ProductType of_trainable) {
    const auto& w = static_cast<const KernelStorage&>(*storage);
    context->save_for_backward({x_NI});
    context->saved_data["w"] = StorageHandle::keep(storage);
    context->saved_data["offsets"] = offsets;
    context->saved_data["dense"] = w_EOI.has_value();
    context->saved_data["biased"] = bias_EO.has_value();
    // through numbers that stay encoded the gradient is exact
    const ProductType type = w_EOI ? of_trainable : ProductType::float32;
    context->saved_data["type"] = static_cast<int64_t>(type);
    if (!w_EOI || w.dtype() != DType::f32)
      return w.grouped_by_rows(x_NI, nullptr, offsets, bias_EO.value_or(Tensor()), {});
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
    const auto& w =
        static_cast<const KernelStorage&>(*StorageHandle::kept(context->saved_data["w"]));
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
        products.push_back({dx.narrow(0, begin, n), dy, w.dense().detach().select(0, e)});
      else if (dx.defined())
        dx.narrow(0, begin, n).copy_(w.slice(e)->transposed(dy));
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

Tensor KernelStorage::grouped(const Tensor& x_NI,
                              const SharedInput* shared,
                              const std::vector<int64_t>& offsets,
                              const Tensor& bias_EO,
                              const ProductSettings& settings) const {
  if (form_of(Op::grouped_product, x_NI) == Form::plain || !by_kernel(x_NI))
    return Storage::grouped(x_NI, shared, offsets, bias_EO, settings);
  if (!at::GradMode::is_enabled()) return grouped_by_rows(x_NI, shared, offsets, bias_EO, settings);
  return GroupedProduct::apply(x_NI, if_defined(dense()), if_defined(bias_EO), shared_from_this(),
                               offsets, settings.type);
}

}  // namespace tessera::ops
