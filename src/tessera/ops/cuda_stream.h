// Where kernels of CUDA (cuda/) are launched: the stream in which libtorch computes.
#pragma once

#include "tessera/cuda/launch.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops {

/// libtorch's current stream of the device of x; of a CPU's tensor, on which kernels are emulated,
/// the default one.
cuda::Stream stream_of(const Tensor& x);

}  // namespace tessera::ops
