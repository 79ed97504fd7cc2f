// Operations on weights: adapters and rounded operands first, then those of the storage.
#include <algorithm>

#include "tessera/ops/basic/over_rows.h"
#include "tessera/ops/form.h"
#include "tessera/ops/weights/product_input.h"
#include "tessera/ops/weights/quantized_operands.h"

namespace tessera::ops {
namespace {

/// The same factors for every row of y.
Tensor by_columns(const Tensor& y, const Tensor& factors) {
  return y * over_rows(factors.to(y.options()), y);
}

/// Whether an operand is rounded before the product, not by its kernel.
bool rounds_before(const Tensor& x, const Weight& w) {
  return w.rounding() &&
         (at::GradMode::is_enabled() || !w.readable_by_kernels() || !w.storage()->by_kernel(x));
}

Tensor rounded_input(const Tensor& x, const Weight& w) {
  return w.rounding().int8 ? int8_rows(x) : x;
}

/// Settings of a product whose kernel rounds what it reads where w says so.
ProductSettings settings_of(const Weight& w, const ProductSettings& settings) {
  return w.rounding().int8 ? settings.reading(kernels::Arithmetic::int8_row) : settings;
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
    return linear_of(rounded_input(x, w), nullptr, without_rounding(w), bias,
                     settings.reading(kernels::Arithmetic::float32));
  const Tensor b_O = bias != nullptr ? bias->tensor() : Tensor();
  return w.storage()->product(x, shared, b_O, settings_of(w, settings));
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
                     settings.reading(kernels::Arithmetic::float32));
  const Tensor b_EO = bias_EO != nullptr ? bias_EO->tensor() : Tensor();
  return w_EOI.storage()->grouped(x_NI, shared, offsets, b_EO, settings_of(w_EOI, settings));
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
  if (w.rounding()) return transposed_product(y, without_rounding(w));
  return w.storage()->transposed(y);
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
  const bool packed_here =
      on_host(w.device()) && !w.dense_tensor().defined() && w.parts() == nullptr;
  if (on_host(ids_N) || packed_here) {
    const int64_t n = ids_N.numel(), limit = w.size(0);
    const Tensor ids = ids_N.to(at::kCPU, at::kLong).contiguous();
    const auto* id = ids.const_data_ptr<int64_t>();
    const auto* wrong = std::find_if(id, id + n, [&](int64_t i) { return i < 0 || i >= limit; });
    if (wrong != id + n)
      fail(ErrorKind::input, "embedding", "{}: id {} is out of range; expected 0 to {}", w.name(),
           *wrong, limit - 1);
  }
  const bool is_matrix = w.parts() != nullptr || (w.rounding() && w.dense_tensor().defined());
  return is_matrix ? at::embedding(w.tensor(settings), ids_N) : w.storage()->rows(ids_N);
}

}  // namespace tessera::ops
