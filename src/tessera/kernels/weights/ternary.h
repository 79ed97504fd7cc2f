// Ternary matrices: one factor d times -1, 0 and 1 (BitNet b1.58: Ma et al. 2024,
// arXiv:2402.17764). Codes are 0, 1 and 2 for -1, 0 and 1.
#pragma once

#include <cstdint>
#include <span>

#include "tessera/base/dtype.h"

namespace tessera::kernels {

/// mean |w| of n numbers, at least 1e-5, summed in an order that follows from n alone.
float absmean(const float* w, int64_t n);

/// Codes of n numbers rounded by their absmean: the nearest of -1, 0 and 1 to w / mean.
void ternary_codes(const float* w, int64_t n, float mean, uint8_t* codes);
/// The numbers that they stand for, 1 / (1 / mean) times -1, 0 and 1; NaN where mean is.
void ternary_values(const float* w, int64_t n, float mean, float* to);

/// Codes and d of n numbers d times -1, 0 and 1; false where they are none. All zeros have d = 0.
bool read_ternary(const float* w, int64_t n, uint8_t* codes, float& d);

/// The smallest storage type that holds rows of `columns` numbers with these factors exactly:
/// tq2_0, of factors that are halves; scaled_u4, of rows of whole blocks of 32; f32.
DType ternary_type(int64_t columns, std::span<const float> factors);
/// Stores n numbers, whole blocks of a type of ternary_type().
void put_ternary(DType type, const uint8_t* codes, int64_t n, float d, void* to);

}  // namespace tessera::kernels
