// Tensors in another floating-point type, and what that costs.
#pragma once

#include "tessera/convert/tensor_ops.h"

namespace tessera::convert {

/// Sums over all numbers that were rounded.
struct RoundingError {
  double squares = 0, errors = 0;  // of the numbers, and of what rounding changed
  /// Root of the mean square error relative to that of the numbers; 0 where nothing changed.
  double relative() const;
};

/// A tensor of floats or blocks as f32, f16 or bf16, rounded to the nearest (ties to even); others
/// stay. Throws Error(usage) where a finite number is beyond the type.
TensorView rounded_to(const TensorView& tensor, DType dtype, RoundingError& error);

}  // namespace tessera::convert
