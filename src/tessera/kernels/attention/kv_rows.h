// How a state stores a key or a value, one row of `width` numbers per token and head:
//   f32, f16, bf16   the numbers
//   i8, u8           "packed": a float scale s in the first four bytes, then `width` codes c, and
//   the
//                    number is s c. i8: c is an integer, s = max|x| / 127. u8: c is an 8-bit float
//                    (e4m3), s = max|x| / 448.
//   i16              "packed" too: a block for each 32 numbers, as weights in q4_1 have it: a step
//   d
//                    and a least number m, both halves, and four bits c of each number, which is
//                    d c + m. A row of i16 is ten times as long as it has blocks.
// The scale precedes the codes, so that the first n numbers of a row are the first n codes of
// it, in whole blocks of i16. A row, or a block, that holds a number that is not finite reads back
// as NaN, and so does a block of i16 with one beyond the largest half. The same bits on every
// processor: what a state holds does not depend on where it was made.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tessera/base/dtype.h"

namespace tessera::kernels {

constexpr int64_t kScaleBytes = 4;

/// Whether a row's numbers are codes.
inline bool is_packed(DType type) {
  return type == DType::i8 || type == DType::u8 || type == DType::i16;
}
/// Whether one scale precedes them.
inline bool has_row_scale(DType type) {
  return type == DType::i8 || type == DType::u8;
}
/// Throws Error(internal) for a type that no row has.
int64_t kv_row_bytes(DType type, int64_t width);
/// `rows` rows that follow one another, as are those of x [rows, width]; `out` is aligned as the
/// type's numbers.
void write_kv_rows(DType type, const float* x, int64_t rows, int64_t width, void* out);
/// One row.
void read_kv_row(DType type, const void* row, int64_t width, float* out);

}  // namespace tessera::kernels
