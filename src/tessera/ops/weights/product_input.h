// Rows of x as products by kernels read them: float32, or rounded once for all weights that they
// meet.
#pragma once

#include "tessera/kernels/weights/digits.h"
#include "tessera/ops/weights/weight.h"

namespace tessera::ops {

/// How products with w read x where no gradient is recorded.
inline kernels::Arithmetic arithmetic_of(const Weight& w) {
  return kernels::has_codes(w.dtype()) ? w.arithmetic() : kernels::Arithmetic::exact;
}

class ProductInput {
 public:
  /// m rows of k numbers, `stride` apart, which stay while this lives.
  ProductInput(
      const float* x, int64_t m, int64_t k, int64_t stride, kernels::Arithmetic arithmetic);
  /// `count` rows from `first` on.
  ProductInput rows(int64_t first, int64_t count) const;

  /// y[i * y_stride + j] = x_i . w_j + bias[j] for n rows of `type` at w.
  void times(
      DType type, const void* w, int64_t n, const float* bias, float* y, int64_t y_stride) const;

 private:
  kernels::Arithmetic arithmetic_;
  kernels::RoundedRows rows_ = {};
  Tensor memory_;  // of the digits
};

}  // namespace tessera::ops
