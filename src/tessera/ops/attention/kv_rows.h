// Keys and values as a state stores them (kernels/attention/kv_rows.h), as tensors [.., heads,
// row]:
//   float32, float64, float16, bfloat16    rows of `width` numbers
//   int8, uint8 ("packed")                 rows of 4 + `width` bytes: a scale, then codes
//   (integers;
//                                          e4m3)
//   int16 ("packed" too)                   rows of ten numbers for each 32: blocks of a step, a
//   least
//                                          number and four bits of each
// All can be narrowed and selected along the other axes, and joined with their like.
#pragma once

#include "tessera/base/dtype.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops {

/// The tensor type that a storage type of keys and values has, and back. Throw Error(internal) for
/// others.
at::ScalarType kv_scalar_type(DType type);
DType kv_dtype(at::ScalarType type);
/// `options` with that type; for float32 as they are, so that a state of doubles keeps doubles.
at::TensorOptions stored_in(DType type, at::TensorOptions options);

bool is_packed(const Tensor& rows);
/// Numbers in a row.
int64_t row_width(const Tensor& rows);
/// The first `width` numbers of every row, without a copy.
Tensor first_of_rows(const Tensor& rows, int64_t width);

/// x [.., width] to rows of `type`. No gradient passes packed rows.
Tensor to_kv_rows(const Tensor& x, at::ScalarType type);
/// Rows as numbers of a float type; plain rows of that type as they are.
Tensor from_kv_rows(const Tensor& rows, at::ScalarType type);

}  // namespace tessera::ops
