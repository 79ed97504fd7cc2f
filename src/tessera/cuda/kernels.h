// All CUDA kernels: the headers with their sources, and which one a struct is.
#pragma once

#include "tessera/cuda/kernels/linear_scan.cuh"
#include "tessera/cuda/kernels/packed.cuh"
#include "tessera/cuda/kernels/rms_norm.cuh"
#include "tessera/cuda/kernels/rope.cuh"
#include "tessera/cuda/kernels/rwkv4.cuh"
#include "tessera/cuda/kernels/scan_carry.cuh"
#include "tessera/cuda/kernels/selective_scan.cuh"
#include "tessera/cuda/kernels/slstm.cuh"
#include "tessera/cuda/kernels/swiglu.cuh"
#include "tessera/cuda/launch.h"

namespace tessera::cuda {

#define TESSERA_CUDA_KERNEL(name, Struct)          \
  template <>                                      \
  struct KernelOf<Struct> {                        \
    static constexpr Kernel kernel = Kernel::name; \
  };
#include "tessera/cuda/kernels.def"
#undef TESSERA_CUDA_KERNEL

}  // namespace tessera::cuda
