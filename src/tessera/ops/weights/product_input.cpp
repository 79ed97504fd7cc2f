#include "tessera/ops/weights/product_input.h"

#include <algorithm>

#include "tessera/base/threads.h"
#include "tessera/kernels/weights/gemm.h"
#include "tessera/kernels/weights/matmul.h"
#include "tessera/ops/weights/input_products.h"
#include "tessera/ops/weights/input_squares.h"

namespace tessera::ops {

void in_order(
    const float* x, int64_t m, int64_t k, int64_t stride, const int32_t* columns, float* y) {
  for (int64_t i = 0; i < m; ++i)
    for (int64_t c = 0; c < k; ++c) y[i * k + c] = x[i * stride + columns[c]];
}

void out_of_order(const float* x, int64_t m, int64_t k, const int32_t* columns, float* y) {
  for (int64_t i = 0; i < m; ++i)
    for (int64_t c = 0; c < k; ++c) y[i * k + columns[c]] = x[i * k + c];
}

bool same_order(const int32_t* a, const int32_t* b, int64_t k) {
  return a == b || (a != nullptr && b != nullptr && std::equal(a, a + k, b));
}

ProductInput::ProductInput(
    const float* x, int64_t m, int64_t k, int64_t stride, const Reading& reading)
    : arithmetic_(reading.arithmetic), x_(x), x_stride_(stride) {
  if (reading.columns != nullptr) {
    ordered_ = at::empty({m, k}, at::kFloat);
    auto* to = ordered_.data_ptr<float>();
    parallel_for(m, 16, [&](int64_t begin, int64_t end) {
      in_order(x + begin * stride, end - begin, k, stride, reading.columns, to + begin * k);
    });
    x = to;
    stride = k;
  }
  if (arithmetic_ == kernels::Arithmetic::float32) {
    rows_.x = x;
    rows_.m = m;
    rows_.k = k;
    rows_.x_stride = stride;
    return;
  }
  memory_ = at::empty({kernels::rounded_bytes(m, k)}, at::kByte);
  rows_ = kernels::round_rows(x, m, k, stride, arithmetic_, memory_.mutable_data_ptr());
}

ProductInput ProductInput::rows(int64_t first, int64_t count) const {
  ProductInput some = *this;
  some.rows_ = rows_.some(first, count);
  some.x_ = x_ + first * x_stride_;
  return some;
}

void ProductInput::note(const void* w) const {
  InputSquares::note(w, x_, rows_.m, rows_.k, x_stride_);
  InputProducts::note(w, x_, rows_.m, rows_.k, x_stride_);
}

void ProductInput::times(
    DType type, const void* w, int64_t n, const float* bias, float* y, int64_t y_stride) const {
  note(w);
  if (arithmetic_ == kernels::Arithmetic::float32)
    kernels::matmul(rows_.x, rows_.m, rows_.k, rows_.x_stride, type, w, n, bias, y, y_stride);
  else
    kernels::digit_matmul(rows_, type, w, n, bias, y, y_stride);
}

void ProductInput::times_in_turn(
    const float* w, int64_t n, const float* bias, float* y, int64_t y_stride) const {
  require(arithmetic_ == kernels::Arithmetic::float32, "product", "float32 weights and digits");
  note(w);
  kernels::gemm(kernels::ProductType::float32, {rows_.x, rows_.x_stride, 1}, {w, 1, rows_.k},
                rows_.m, n, rows_.k, y, y_stride,
                /*add=*/false, bias);
}

ProductInput product_input(const Tensor& x, const Reading& reading) {
  const int64_t width = x.size(-1);
  return ProductInput(x.const_data_ptr<float>(), x.numel() / std::max<int64_t>(1, width), width,
                      width, reading);
}

ProductInput SharedInput::rows(const Reading& reading) const {
  if (!dense_.defined()) dense_ = x_.contiguous();
  if (reading.as_they_are()) return product_input(dense_, reading);
  if (!kept_ || kept_->first.arithmetic != reading.arithmetic ||
      !same_order(kept_->first.columns, reading.columns, dense_.size(-1)))
    kept_.emplace(reading, product_input(dense_, reading));
  return kept_->second;
}

}  // namespace tessera::ops
