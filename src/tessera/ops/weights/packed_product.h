// Weights in blocks on a GPU, read from their packed bytes by kernels of CUDA (cuda/packed.h).
// Without gradients.
#pragma once

#include "tessera/base/dtype.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops {

/// Whether packed_product() computes x: Form::cuda of Op::product, and few rows.
bool packed_product_serves(DType type, const Tensor& x);
/// Whether unpacked_by_kernel() decodes these rows: on a device where Form::cuda serves.
bool unpack_kernel_serves(DType type, const Tensor& rows_RB, at::ScalarType as);

/// x [.., I] W_OI^T (+ bias_O) -> [.., O], from rows_OB: the bytes of the rows of W, uint8. A row's
/// bits do not depend on the other rows of x.
Tensor packed_product(DType type, const Tensor& rows_OB, const Tensor& x, const Tensor& bias_O);

/// Rows of whole blocks, uint8 [R, bytes] -> float32 or bf16 [R, numbers]: the values of
/// kernels::dequantize, or those rounded.
Tensor unpacked_by_kernel(DType type, const Tensor& rows_RB, at::ScalarType as = at::kFloat);

}  // namespace tessera::ops
