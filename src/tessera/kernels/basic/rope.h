// Rotary position embedding, applied in place to queries or keys. float32.
//   (a, b) -> (a cos - b sin, b cos + a sin) for each pair, every product rounded (no fma), so that
//   the numbers equal the plain formula's. Su et al. 2021, arXiv:2104.09864.
#pragma once

#include <cstdint>

namespace tessera::kernels {

/// Which values are rotated and how they lie: x[t * token_stride + h * head_stride + c].
struct RopeLayout {
  int64_t tokens = 0;
  int64_t heads = 0;
  int64_t head_stride = 0;
  int64_t token_stride = 0;
  int64_t rotary_dim = 0;    // even; the values after it are unchanged
  bool interleaved = false;  // pairs (2i, 2i + 1); otherwise (i, i + rotary_dim / 2)
};

/// cos, sin: [tokens, rotary_dim / 2], one row per token. Throws Error(internal) on an odd
/// rotary_dim.
void rope(float* x, const RopeLayout& layout, const float* cos, const float* sin);

}  // namespace tessera::kernels
