// Matrix product with weights in their storage type: y = x w^T + bias in float32.
//
// Goals: an output row has the same bits whatever the other rows, the number of rows, the thread
// count or the alignment; the memory traffic of one token is the packed weights, read once.
// Not a goal: peak speed for training shapes, or transposed weights (see ops/ for those).
//
// An output is the dot product of a row of x and a row of w: lane l of one vector accumulates
// the products at k = l, l + lanes, ... in ascending order by fused multiply-add; the lanes are
// then added in one fixed order: the upper half to the lower one until four are left, these in
// pairs. Weights are dequantised a panel at a time into the second cache level, for a few rows of x
// in registers.
#pragma once

#include <cstdint>

#include "tessera/base/dtype.h"

namespace tessera::kernels {

/// y[i * y_stride + j] = sum_c x[i * x_stride + c] w[j][c] + bias[j], for i < m, j < n, c < k.
/// w: n rows of k values of type w_type (can_dequantize), rows contiguous and of whole blocks; no
/// alignment is needed. bias: n values or null. y must not overlap x or w.
/// Throws Error(internal) when a size is negative, k is not whole blocks, or a stride is too short.
void matmul(const float* x,
            int64_t m,
            int64_t k,
            int64_t x_stride,
            DType w_type,
            const void* w,
            int64_t n,
            const float* bias,
            float* y,
            int64_t y_stride);

}  // namespace tessera::kernels
