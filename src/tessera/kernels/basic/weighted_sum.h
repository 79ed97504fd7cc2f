// Rows added up with given weights: compressed keys, and attention whose weights are no softmax.
//
// An output is a sum in ascending order of the rows by fused multiply-add, whatever the other
// outputs or threads; rows of weight zero after the last one change no bits.
#pragma once

#include <cstdint>

namespace tessera::kernels {

/// y[i][c] = sum_j a[i][j] v[j][c] for i < M, j < N, c < C; y must not overlap a or v. Rows in
/// several pieces: `onto` adds to what y holds, with the bits of one call for all of them.
struct WeightedSum {
  int64_t M = 0, N = 0, C = 0;
  const float* a = nullptr;  // [M, N]
  int64_t a_stride = 0;
  const float* v = nullptr;  // [N, C]
  int64_t v_stride = 0;
  float* y = nullptr;  // [M, C]
  int64_t y_stride = 0;
  bool onto = false;
};
void weighted_sum(const WeightedSum& sum);

}  // namespace tessera::kernels
