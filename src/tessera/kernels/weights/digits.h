// Matrix product with weights in blocks, of integers: x is rounded to digits of base 128, and a
// block's codes meet them in whole numbers.
//
// Goals: an output row has the same bits whatever the other rows, their number, the thread count,
// the alignment, and the instruction set; codes are read where they lie, once for a few rows.
// Not a goal: the bits of matmul.h. With two digits an output differs from it by about 1e-4 of the
// root mean square of its kind, with one by up to 2e-2.
//
// Each 32 numbers of a row of x become v = round(x T / max |x|), T = 127 * 128 for two digits and
// 127 for one, and s = max |x| / T; numbers below 2^-112 throughout count as zeros. An output is
//   sum over the runs of a row of w, in their order, of fma(sum_e code_e v_e, round(d s), .), and
// where they have a minimum then fma(m, round(s sum_e v_e), .),
// with d and m of the run (blocks_inl.h): the sums over e are exact, the others float32. A row of x
// with a number that is not finite is multiplied as matmul.h does.
// With one digit per row (Arithmetic::int8_row) v = round(x (127 / a)) and s = a / 127 for all
// numbers of a row, a = max(max |x|, 1e-5): the activations of BitNet b1.58 (Ma et al. 2024,
// arXiv:2402.17764).
#pragma once

#include <cstdint>

#include "tessera/base/dtype.h"

namespace tessera::kernels {

/// Precision of activations x in products with weights in blocks. int8_row: 8 bits with one scale
/// for all numbers of a row, others one for each 32 of them. With weights in bfloat16 x is one or
/// the sum of two of these (bf16_rows.h).
enum class Arithmetic : uint8_t { float32, int15, int8, int8_row, bf16, bf16_pair };

/// The least largest magnitude by which int8_row scales a row.
inline constexpr float kLeastRowMagnitude = 1e-5f;

/// Whether weights of this type are codes: every block type of DType but those with
/// code books (IQ1 to IQ3) and numbers in e4m3.
bool has_codes(DType type);

/// The arithmetic of products with rows of k weights of this type, where it is to be `wished` for
/// weights in blocks: for those in bfloat16 a pair for int15 and one for int8 on processors where
/// each is faster, else float32.
Arithmetic arithmetic_of(DType type, int64_t k, Arithmetic wished);

/// 32 numbers of x.
struct RoundedBlock {
  float s, total, half_total[2];  // s sum v of all, and of each 16
  int32_t sum, half_sum[2], unused;
};

/// Rows of x in digits or in bfloat16, in the caller's memory. Those that multiply them run on the
/// same instruction set as round_rows().
struct RoundedRows {
  const float* x;  // as they were
  int64_t m, k, x_stride;
  bool int15;
  bool by_row;        // one scale for a row
  int64_t row_codes;  // bytes of codes of a row
  int parts;          // bfloat16 of a number; 0: digits
  // [m][k / 32]: the digits of 32 numbers, or they as 16 bits each, or [parts][32] bfloat16
  uint8_t* codes;
  RoundedBlock* blocks;  // [m][k / 32]
  uint8_t* finite;       // [m]: whether a row's numbers all are

  /// `count` of them from `first` on.
  RoundedRows some(int64_t first, int64_t count) const;
};

/// Bytes that round_rows() needs for m rows of k numbers.
int64_t rounded_bytes(int64_t m, int64_t k);

/// Where rows of k numbers, whole blocks of 32, are to be rounded: `memory` of rounded_bytes(m, k),
/// aligned to a cache line. Nothing is read or written yet. Throws Error(internal) on sizes that do
/// not fit or Arithmetic::float32.
RoundedRows rows_to_round(
    const float* x, int64_t m, int64_t k, int64_t x_stride, Arithmetic arithmetic, void* memory);
/// Rounds them, on this thread.
void round(const RoundedRows& rows);
/// Both, on all threads; x must stay while the result is used.
RoundedRows round_rows(
    const float* x, int64_t m, int64_t k, int64_t x_stride, Arithmetic arithmetic, void* memory);

/// y[i * y_stride + j] = x_i . w_j + bias[j] for j < n, as matmul() has them, of a type that
/// has_codes(), or of bf16 for rows in bfloat16.
void digit_matmul(const RoundedRows& x,
                  DType w_type,
                  const void* w,
                  int64_t n,
                  const float* bias,
                  float* y,
                  int64_t y_stride);

}  // namespace tessera::kernels
