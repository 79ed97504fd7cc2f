// Products of rows of x in bfloat16 with weights in bfloat16, on processors that multiply pairs of
// them, by AVX512-BF16 or AMX: the case of digit_matmul() (digits.h) for weights that are no
// blocks.
//
// Goals: an output row has the same bits whatever the other rows, their number, the thread count
// and the alignment; one row at the speed of memory, many at that of the units. Not a goal: the
// bits of matmul.h, or of other processors.
//
// x becomes the nearest bfloat16, or the sum of two: the nearest one and that nearest to the rest,
// 16 bits together. An output sums up, pair by pair of neighbours along k, products with the first
// parts and then with the second ones in float32. Pieces of 512 or 1,024 numbers, and in each of
// them quarters of every 32, are summed separately and then in order. Numbers below 2^-126 are
// zeros, above 3.39e38 infinite. AMX has one sum, of 32 numbers after another. Elsewhere the
// product is matmul()'s.
#pragma once

#include <cstdint>

#include "tessera/kernels/weights/digits.h"

namespace tessera::kernels {

/// Whether products of rows of k numbers in bfloat16 are computed here, and faster than in float32:
/// by AMX, and by the units of AMD's processors, which multiply two numbers where they multiply one
/// float32. Those of Intel's are slower than float32.
bool bf16_rows_pay(int64_t k);
/// Whether those with sums of two bfloat16 are: by AMX alone. AVX512-BF16 takes as long for both
/// products as for one in float32, and one row of x is slower.
bool bf16_pairs_pay(int64_t k);

/// Bytes of the parts of one row.
int64_t bf16_row_bytes(int64_t k, int parts);

/// As round() and digit_matmul() have them, of rows with parts.
void round_to_bf16(const RoundedRows& rows, int64_t begin, int64_t end);
void bf16_matmul(
    const RoundedRows& x, const void* w, int64_t n, const float* bias, float* y, int64_t y_stride);

}  // namespace tessera::kernels
