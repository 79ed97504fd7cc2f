// Whether a GPU has CUDA kernels of the program's own (cuda/kernels.h).
#pragma once

#include <string>

#include "tessera/ops/tensor.h"

namespace tessera::ops {

/// Why a GPU has no kernels of the program's own (then plain forms compute there), with the remedy;
/// "" if it has. TESSERA_CUDA_KERNELS=0 turns them off.
std::string no_cuda_kernels_reason(int device);

/// Loads them on a GPU, for form_of. Without them does nothing.
void open_cuda_kernels(int device);

/// Tests: tensors of this device take the kernels in place of CUDA's.
void count_as_cuda(at::DeviceType device);

}  // namespace tessera::ops
