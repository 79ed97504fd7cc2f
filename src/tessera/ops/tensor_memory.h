// The storages of tensors count themselves in memory_meter() (base/allocator.h).
#pragma once

namespace tessera::ops {

/// From now on, what libtorch's allocator for the CPU gives out is counted until it comes back.
/// Tensors made before are not. Safe to call more than once; there is no way back.
void count_tensor_memory();

}  // namespace tessera::ops
