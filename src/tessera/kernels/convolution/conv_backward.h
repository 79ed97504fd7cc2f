// The backward pass of the short causal convolution of ssm.h over one document. float32.
//   p_t = bias + sum_j w_j x_{t-(K-1)+j}, y = act(p):  dp = dy act'(p);
//   dx_t = sum_j w_j dp_{t+(K-1)-j};  dw_j = sum_t dp_t x_{t-(K-1)+j};  dbias = sum_t dp_t
#pragma once

#include <cstdint>

#include "tessera/kernels/activation.h"

namespace tessera::kernels {

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
