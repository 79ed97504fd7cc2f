// Block types to float numbers on devices other than the CPU, by kernels of CUDA where they are
// (packed_product.h), else by torch's operations on bits and look-up tables: the values and bits of
// kernels::dequantize.
#pragma once

#include "tessera/base/dtype.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops {

/// Rows of whole blocks of any block type, uint8 [R, bytes] -> [R, numbers], float32 rounded to
/// `type`.
Tensor unpacked(DType dtype, const Tensor& rows_RB, at::ScalarType type = at::kFloat);

}  // namespace tessera::ops
