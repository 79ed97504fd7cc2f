// Rows of x as products by kernels read them: float32, or rounded once for all weights that they
// meet.
#pragma once

#include <optional>
#include <utility>

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
  /// The same of float32, added up one after the other (kernels/weights/gemm.h); of rows that are
  /// read exactly.
  void times_in_turn(
      const float* w, int64_t n, const float* bias, float* y, int64_t y_stride) const;

 private:
  /// Who counts what weights read is told.
  void note(const void* w) const;

  kernels::Arithmetic arithmetic_;
  kernels::RoundedRows rows_ = {};
  Tensor memory_;  // of the digits
};

/// While one lives on a thread, products there that read x in digits round it once for all of them:
/// for a part that multiplies its input by several weights. Nobody may write to x meanwhile.
class SharedInput {
 public:
  explicit SharedInput(const Tensor& x) : x_(x), before_(current_) { current_ = this; }
  ~SharedInput() { current_ = before_; }
  SharedInput(const SharedInput&) = delete;
  SharedInput& operator=(const SharedInput&) = delete;

  /// The rows of a dense float32 x [.., I], which stay as long as x.
  static ProductInput rows_of(const Tensor& x, kernels::Arithmetic arithmetic);

 private:
  inline static thread_local SharedInput* current_ = nullptr;
  Tensor x_;
  std::optional<std::pair<kernels::Arithmetic, ProductInput>> rounded_;
  SharedInput* before_;
};

}  // namespace tessera::ops
