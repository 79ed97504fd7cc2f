#include "tessera/ops/attention/relative_products.h"

#include <algorithm>

#include "tessera/kernels/weights/matmul.h"
#include "tessera/ops/attention/attention.h"
#include "tessera/ops/form.h"

namespace tessera::ops {
namespace {

struct Span {
  int64_t first = 0, n = 0;
};

/// The rows of the table that each row of x is multiplied with.
std::vector<Span> spans_of(const Tensor& index_TS) {
  std::vector<Span> spans;
  const auto* index = index_TS.const_data_ptr<int64_t>();
  const int64_t s = index_TS.size(1);
  for (int64_t t = 0; t < index_TS.size(0); ++t) {
    const auto [low, high] = std::minmax_element(index + t * s, index + (t + 1) * s);
    spans.push_back({*low, *high - *low + 1});
  }
  return spans;
}

/// Each row of x with its own span of the table.
Tensor by_spans(const Tensor& x_BHTD,
                const Tensor& rows_HRD,
                const Tensor& index_TS,
                const std::vector<Span>& spans) {
  const Tensor x = x_BHTD.contiguous();
  const int64_t heads = x.size(1), t = x.size(2), d = x.size(3), s = index_TS.size(1);
  const int64_t r = rows_HRD.size(1);
  Tensor y = at::empty({x.size(0), heads, t, s}, x.options());
  std::vector<float> products(static_cast<size_t>(r));
  for (int64_t row = 0; row < x.size(0) * heads * t; ++row) {
    const Span span = spans[static_cast<size_t>(row % t)];
    const float* table = rows_HRD.const_data_ptr<float>() + row / t % heads * r * d;
    kernels::matmul(x.const_data_ptr<float>() + row * d, 1, d, d, DType::f32,
                    table + span.first * d, span.n, nullptr, products.data(), span.n);
    const auto* index = index_TS.const_data_ptr<int64_t>() + row % t * s;
    float* out = y.data_ptr<float>() + row * s;
    for (int64_t j = 0; j < s; ++j) out[j] = products[static_cast<size_t>(index[j] - span.first)];
  }
  return y;
}

}  // namespace

Tensor products_at(const Tensor& x_BHTD, const Tensor& rows, const Tensor& index_TS) {
  const int64_t b = x_BHTD.size(0), h = x_BHTD.size(1), t = x_BHTD.size(2), s = index_TS.size(1);
  if (t == 0 || s == 0) return at::zeros({b, h, t, s}, x_BHTD.options());
  const auto [low, high] = at::aminmax(index_TS);
  const int64_t first = low.item<int64_t>(), n = high.item<int64_t>() - first + 1;
  const Tensor read = rows.narrow(-2, first, n).to(x_BHTD.scalar_type());
  const Tensor index = (index_TS - first).contiguous();
  if (kernel_serves(Op::products_at, x_BHTD)) {
    // a key of a block of queries meets few of the distances that the block meets
    const std::vector<Span> spans = spans_of(index);
    int64_t needed = 0;
    for (const Span& span : spans) needed += span.n;
    if (2 * needed < t * n)
      return by_spans(x_BHTD, read.expand({h, n, read.size(-1)}).contiguous(), index, spans);
  }
  return row_products(x_BHTD, read).gather(-1, index.expand({b, h, t, s}));
}

}  // namespace tessera::ops
