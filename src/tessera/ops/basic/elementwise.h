// Elementwise functions in training whose bits do not turn on the number of threads. libtorch
// computes whole vectors by one formula and what is left of a thread's share by another; here a
// share follows from the size alone.
#pragma once

#include "tessera/ops/tensor.h"

namespace tessera::ops {

enum class Elementwise { sigmoid, silu, softplus, gelu, gelu_tanh };

/// f(x), with gradients.
Tensor elementwise(Elementwise f, const Tensor& x);

/// The same without a graph; x float32 on a CPU.
Tensor elementwise_value(Elementwise f, const Tensor& x);

}  // namespace tessera::ops
