// Rows of x as products by kernels read them: float32, or rounded once for all weights that they
// meet, their numbers in the order in which columns of weights lie.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "tessera/kernels/weights/digits.h"
#include "tessera/ops/weights/weight.h"

namespace tessera::ops {

/// How products with w read x where no gradient is recorded and `wished` is that of the call
/// (ProductSettings::arithmetic).
inline kernels::Arithmetic arithmetic_of(const Weight& w, kernels::Arithmetic wished) {
  return kernels::arithmetic_of(w.dtype(), w.shape().back(),
                                w.rounding().int8 ? kernels::Arithmetic::int8_row : wished);
}

/// How a product with a weight reads rows.
struct Reading {
  kernels::Arithmetic arithmetic = kernels::Arithmetic::float32;
  const int32_t* columns = nullptr;  // as Weight::columns(), of one matrix

  bool as_they_are() const {
    return arithmetic == kernels::Arithmetic::float32 && columns == nullptr;
  }
};

/// y[i * k + c] = x[i * stride + columns[c]]: m rows in the order in which columns lie.
void in_order(
    const float* x, int64_t m, int64_t k, int64_t stride, const int32_t* columns, float* y);
/// The inverse, of dense rows: y[i * k + columns[c]] = x[i * k + c].
void out_of_order(const float* x, int64_t m, int64_t k, const int32_t* columns, float* y);
/// Whether both say the same order of k columns.
bool same_order(const int32_t* a, const int32_t* b, int64_t k);

class ProductInput {
 public:
  /// m rows of k numbers, `stride` apart, which stay while this lives.
  ProductInput(const float* x, int64_t m, int64_t k, int64_t stride, const Reading& reading);
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
  /// Observers of the inputs of weights are called.
  void note(const void* w) const;

  kernels::Arithmetic arithmetic_;
  kernels::RoundedRows rows_ = {};
  const float* x_;  // as they were given
  int64_t x_stride_;
  Tensor ordered_;  // in the order of columns, where they are not so
  Tensor memory_;   // of the digits
};

/// The rows of a dense float32 x [.., I], which must stay while they are read.
ProductInput product_input(const Tensor& x, const Reading& reading);

/// An input that a part multiplies by several weights: products that read it in digits, or in
/// another order, round and order it once for all of them. Callers must not write to x meanwhile.
/// For one thread at a time.
class SharedInput {
 public:
  explicit SharedInput(Tensor x) : x_(std::move(x)) {}
  SharedInput(const SharedInput&) = delete;
  SharedInput& operator=(const SharedInput&) = delete;

  const Tensor& tensor() const { return x_; }
  operator const Tensor&() const { return x_; }  // NOLINT(google-explicit-constructor)
  /// Those of a float32 x on a CPU; they stay while this lives.
  ProductInput rows(const Reading& reading) const;

 private:
  Tensor x_;
  mutable Tensor dense_;
  mutable std::optional<std::pair<Reading, ProductInput>> kept_;
};

Tensor linear(const SharedInput& x,
              const Weight& w,
              const Weight* bias = nullptr,
              const ProductSettings& settings = {});

Tensor grouped_linear(const SharedInput& x_NI,
                      const Weight& w_EOI,
                      const std::vector<int64_t>& offsets,
                      const Weight* bias_EO = nullptr,
                      const ProductSettings& settings = {});

}  // namespace tessera::ops
