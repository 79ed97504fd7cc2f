// The short causal convolution of one sequence, and its backward pass over one document. float32; a
// token's bits depend on the inputs that its taps meet alone, so any split of a sequence into calls
// gives the same numbers.
//   p_t = bias + sum_j w_j x_{t-(K-1)+j}, y = act(p):  dp = dy act'(p);
//   dx_t = sum_j w_j dp_{t+(K-1)-j};  dw_j = sum_t dp_t x_{t-(K-1)+j};  dbias = sum_t dp_t
#pragma once

#include <cstdint>

#include "tessera/kernels/activation.h"

namespace tessera::kernels {

/// y[t][c] = activation(bias[c] + sum_j w[c][j] x[t - (K - 1) + j][c]): the last tap meets the
/// present.
struct CausalConv {
  int64_t T = 0, C = 0, K = 0;
  const float* x = nullptr;     // [T, C]
  const float* w = nullptr;     // [C, K]
  const float* bias = nullptr;  // [C] or null
  float* tail =
      nullptr;  // [K - 1, C]: the inputs before x, oldest first; replaced by the last ones
  Activation activation = Activation::identity;
  float* y = nullptr;  // [T, C]; must not overlap x
};
/// Throws Error(internal) unless 1 <= K <= 64.
void causal_conv1d(const CausalConv& conv);

/// All arrays are dense, the last axis fastest; taps are [K, C], the transpose of CausalConv::w.
struct CausalConvGradient {
  int64_t T = 0, C = 0, K = 0;
  const float* x = nullptr;     // [T, C]; zeros stand before it
  const float* taps = nullptr;  // [K, C]
  const float* bias = nullptr;  // [C] or null
  Activation activation = Activation::identity;
  const float* dy = nullptr;  // [T, C]
  float* dx = nullptr;        // [T, C]
  float* dtaps = nullptr;     // [K, C], added to what is there
  float* dbias = nullptr;     // [C], added to what is there
};
/// Channels [begin, end), on the calling thread. Throws Error(internal) unless 1 <= K <= 64 and the
/// activation is identity or silu.
void causal_conv1d_backward(const CausalConvGradient& gradient, int64_t begin, int64_t end);

}  // namespace tessera::kernels
