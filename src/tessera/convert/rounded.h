// Tensors in another floating-point type, and the error of weights.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "tessera/convert/tensor_ops.h"

namespace tessera::convert {

/// Sums over numbers and their differences from the exact ones.
struct WeightError {
  int64_t numbers = 0;
  double squares = 0, errors = 0;  // of the exact numbers, and of the differences
  double largest = 0;              // absolute difference
  void add(double exact, double written);
  void add(const WeightError& other);
  /// Root of the mean square difference by that of the exact numbers; 0 where nothing differs.
  double relative() const;
};

/// A tensor of floats or blocks as f32, f16 or bf16, rounded to the nearest (ties to even); others
/// stay. Throws Error(usage) where a finite number is beyond the type.
TensorView rounded_to(const TensorView& tensor, DType dtype);

/// Whether ternary blocks (tq1_0, tq2_0) hold the numbers of a matrix exactly, whose rows are whole
/// blocks of them: in each block one factor that is a half times -1, 0 and 1. False for other
/// types.
bool ternary_holds(DType type, const TensorView& matrix);

/// A line about block-quantized tensors that are dequantized to float32, all for which `stays` is
/// false; "" without any.
std::string widened_line(std::span<const TensorView> tensors,
                         const std::function<bool(const TensorView&)>& stays);

/// Differences of a tensor from another of the same shape. Numbers that are not finite in one of
/// them are left out, as are tensors of integers.
WeightError error_of(const TensorView& written, const TensorView& exact);

}  // namespace tessera::convert
