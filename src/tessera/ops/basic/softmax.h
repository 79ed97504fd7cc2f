// softmax in training whose gradient does not turn on the number of threads. libtorch's does where
// rows are no whole vectors (8 rows of 61 with 1 and with 2 threads).
#pragma once

#include "tessera/ops/tensor.h"

namespace tessera::ops {

/// at::softmax along the last dimension, with gradients.
Tensor softmax(const Tensor& x);

}  // namespace tessera::ops
