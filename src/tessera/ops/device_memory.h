// Memory of devices, as their allocators in libtorch report it.
#pragma once

#include <optional>

#include "tessera/ops/tensor.h"

namespace tessera::ops {

struct DeviceMemory {
  int64_t free = 0, total = 0;  // bytes
};

/// What a plan may take of this memory: four fifths. The rest is for what is not counted: gaps
/// between the blocks of an allocator, workspaces of libraries.
constexpr int64_t usable_memory(int64_t bytes) {
  return bytes / 5 * 4;
}

/// nullopt for the CPU, and for a device whose backend does not report it.
std::optional<DeviceMemory> memory_of(at::Device device);

/// Bytes that this process held on the device at most since reset_peak_memory(), cached blocks
/// included; nullopt as for memory_of().
std::optional<int64_t> peak_memory(at::Device device);

/// Gives cached blocks back to the device, and begins peak_memory() again.
void reset_peak_memory(at::Device device);

}  // namespace tessera::ops
