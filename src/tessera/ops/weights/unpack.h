// Block types to float32 by torch's operations, for devices other than the CPU: the values and
// bits of kernels::dequantize.
#pragma once

#include "tessera/base/dtype.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops {

/// Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K, TQ2_0 and the types of 4 and 8 bits of
/// quantized folders.
bool can_unpack(DType dtype);

/// Rows of whole blocks, uint8 [R, bytes] -> float32 [R, numbers].
Tensor unpacked(DType dtype, const Tensor& rows_RB);

}  // namespace tessera::ops
