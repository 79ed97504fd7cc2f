// A causal convolution whose filter is as long as the sequence, summed directly: what continues a
// sequence from its past inputs (Poli et al. 2023, arXiv:2302.10866, keep them all for that).
//
// Lanes are channels, and an output is a sum in ascending order of the inputs by fused
// multiply-add, so that its bits depend on the inputs before it alone: not on how many outputs a
// call asks for, the pieces that the inputs lie in, or threads. A transform is faster for whole
// sequences of many thousands of tokens, but each of its bits depends on the sequence's length.
#pragma once

#include <cstdint>

namespace tessera::kernels {

/// y[t][c] = sum_s k[start + t - s][c] z[s][c] over s < S with s <= start + t, for t < T, c < C:
/// output 0 meets the inputs 0 .. start. Inputs in several pieces: `onto` adds to what y holds,
/// with the bits of one call for all of them; `start` counts from a piece's own first row, so that
/// it is negative for a piece that begins after output 0.
struct LongConv {
  int64_t T = 0, S = 0, C = 0;
  int64_t start = 0;
  const float* z = nullptr;  // [S, C]
  int64_t z_stride = 0;
  const float* k = nullptr;  // [start + T, C]
  int64_t k_stride = 0;
  float* y = nullptr;  // [T, C], dense; must not overlap z or k
  bool onto = false;
};
void long_conv(const LongConv& conv);

}  // namespace tessera::kernels
