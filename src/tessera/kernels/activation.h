// The elementwise activations, by the names that configs use (shared by rowwise.h and ssm.h).
#pragma once

#include <cstdint>

namespace tessera::kernels {

enum class Activation : uint8_t {
  identity,
  relu,        // max(x, 0)
  gelu,        // x Phi(x), Phi the normal distribution function
  gelu_tanh,   // x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
  quick_gelu,  // x sigmoid(1.702 x)
  silu,        // x sigmoid(x)
  sigmoid,
  relu2,  // max(x, 0)^2
  tanh,
};

}  // namespace tessera::kernels
