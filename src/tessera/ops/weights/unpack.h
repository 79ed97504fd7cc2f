// Block types to float numbers on devices other than the CPU, by kernels of CUDA where they are
// (packed_product.h), else by torch's operations: the values and bits of kernels::dequantize.
#pragma once

#include "tessera/base/dtype.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops {

/// Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K, TQ2_0 and the types of 4 and 8 bits of
/// quantized folders.
bool can_unpack(DType dtype);

/// Rows of whole blocks, uint8 [R, bytes] -> [R, numbers], float32 rounded to `type`.
Tensor unpacked(DType dtype, const Tensor& rows_RB, at::ScalarType type = at::kFloat);

}  // namespace tessera::ops
