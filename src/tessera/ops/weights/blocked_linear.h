// Products in training whose bits do not turn on the number of threads. libtorch's do for some
// shapes (7 x 64 by 64 x 64 with 1 and with 2 threads): its library cuts them by the threads that
// it has.
#pragma once

#include "tessera/ops/tensor.h"

namespace tessera::ops {

/// x [.., I] w_OI^T (+ bias_O) -> [.., O], all float32 on a CPU, with gradients. Cut into blocks
/// that follow from the shapes alone, of which one thread computes each.
Tensor blocked_linear(const Tensor& x, const Tensor& w_OI, const Tensor& bias_O = {});

}  // namespace tessera::ops
