#include "tessera/ops/weights/product_input.h"

#include <algorithm>

#include "tessera/kernels/weights/gemm.h"
#include "tessera/kernels/weights/matmul.h"
#include "tessera/ops/weights/input_products.h"
#include "tessera/ops/weights/input_squares.h"

namespace tessera::ops {

ProductInput::ProductInput(
    const float* x, int64_t m, int64_t k, int64_t stride, kernels::Arithmetic arithmetic)
    : arithmetic_(arithmetic) {
  if (arithmetic == kernels::Arithmetic::exact) {
    rows_.x = x;
    rows_.m = m;
    rows_.k = k;
    rows_.x_stride = stride;
    return;
  }
  memory_ = at::empty({kernels::rounded_bytes(m, k)}, at::kByte);
  rows_ = kernels::round_rows(x, m, k, stride, arithmetic, memory_.mutable_data_ptr());
}

ProductInput ProductInput::rows(int64_t first, int64_t count) const {
  ProductInput some = *this;
  some.rows_ = rows_.some(first, count);
  return some;
}

void ProductInput::note(const void* w) const {
  InputSquares::note(w, rows_.x, rows_.m, rows_.k, rows_.x_stride);
  InputProducts::note(w, rows_.x, rows_.m, rows_.k, rows_.x_stride);
}

void ProductInput::times(
    DType type, const void* w, int64_t n, const float* bias, float* y, int64_t y_stride) const {
  note(w);
  if (arithmetic_ == kernels::Arithmetic::exact)
    kernels::matmul(rows_.x, rows_.m, rows_.k, rows_.x_stride, type, w, n, bias, y, y_stride);
  else
    kernels::digit_matmul(rows_, type, w, n, bias, y, y_stride);
}

void ProductInput::times_in_turn(
    const float* w, int64_t n, const float* bias, float* y, int64_t y_stride) const {
  require(arithmetic_ == kernels::Arithmetic::exact, "product", "float32 weights and digits");
  note(w);
  kernels::gemm(kernels::ProductType::float32, {rows_.x, rows_.x_stride, 1}, {w, 1, rows_.k},
                rows_.m, n, rows_.k, y, y_stride,
                /*add=*/false, bias);
}

ProductInput SharedInput::rows_of(const Tensor& x, kernels::Arithmetic arithmetic) {
  const auto round = [&] {
    const int64_t width = x.size(-1);
    return ProductInput(x.const_data_ptr<float>(), x.numel() / std::max<int64_t>(1, width), width,
                        width, arithmetic);
  };
  SharedInput* shared = current_;
  if (arithmetic == kernels::Arithmetic::exact || shared == nullptr || !shared->x_.is_same(x))
    return round();
  if (!shared->rounded_ || shared->rounded_->first != arithmetic)
    shared->rounded_.emplace(arithmetic, round());
  return shared->rounded_->second;
}

}  // namespace tessera::ops
