// The entry points of the kernels on a GPU, compiled by nvcc (cmake/CudaKernels.cmake).
#include "tessera/cuda/block.h"
#include "tessera/cuda/kernels.h"

#define TESSERA_CUDA_KERNEL(name, Struct)                                       \
  extern "C" __global__ void __launch_bounds__(tessera::cuda::Struct::kThreads) \
      name(const __grid_constant__ tessera::cuda::Struct::Arguments in) {       \
    __shared__ tessera::cuda::Struct::Shared shared;                            \
    tessera::cuda::DeviceBlock block;                                           \
    tessera::cuda::Struct::run(block, shared, in);                              \
  }
#include "tessera/cuda/kernels.def"
#undef TESSERA_CUDA_KERNEL
