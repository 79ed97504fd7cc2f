// Products of integers (digits.h) for many rows, on AMX: of two digits with weights whose codes are
// below 32 in size, one scale for 32 of them. Elsewhere tiles do not pay: a scale for each 32
// products leaves the other units as much to do as there is, and one digit, wider codes and runs of
// 16 leave tiles less.
#pragma once

#include <cstdint>

#include "tessera/base/dtype.h"
#include "tessera/kernels/weights/digits.h"

namespace tessera::kernels {

/// y = x w^T, as digit_matmul() has it.
struct DigitProblem {
  const RoundedRows& x;
  DType type;
  const uint8_t* w;
  int64_t n, row_bytes;
  const float* bias;
  float* y;
  int64_t y_stride;
};

/// Whether the processor has tiles, and x enough rows for them to be faster.
bool tiles_pay(const DigitProblem& problem);
/// The product on all threads, of the bits that digit_matmul() has everywhere.
void multiply_in_tiles(const DigitProblem& problem);

}  // namespace tessera::kernels
