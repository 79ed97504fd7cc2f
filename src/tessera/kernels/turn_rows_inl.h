// Rows turned into columns, so that the lanes of a vector are rows. Included once per target.
#if defined(TESSERA_KERNELS_TURN_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_KERNELS_TURN_ROWS_INL_H_
#undef TESSERA_KERNELS_TURN_ROWS_INL_H_
#else
#define TESSERA_KERNELS_TURN_ROWS_INL_H_
#endif

#include "tessera/kernels/simd_inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

/// to[c * to_row + i] = from[i * row + c] for `count` rows i; zeros for those from there to
/// `filled`.
HWY_INLINE void turn_rows(const float* from,
                          int64_t row,
                          int64_t count,
                          int64_t columns,
                          float* to,
                          int64_t to_row,
                          int64_t filled) {
  int64_t i = 0;
  for (; i + 4 <= count; i += 4) transpose_four_rows(from + i * row, row, columns, to + i, to_row);
  for (; i < count; ++i)
    for (int64_t c = 0; c < columns; ++c) to[c * to_row + i] = from[i * row + c];
  for (; i < filled; ++i)
    for (int64_t c = 0; c < columns; ++c) to[c * to_row + i] = 0;
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#endif  // toggling guard
