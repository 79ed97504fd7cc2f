// Per-thread work memory of the kernels: grows to the largest request and is kept.
#pragma once

#include <hwy/aligned_allocator.h>

#include <cstdint>
#include <new>

namespace tessera::kernels {

/// At least `floats` floats, aligned to a cache line, not initialised. One buffer per thread and
/// slot: a second call with the same slot takes the memory of the first.
template <int slot>
float* scratch(int64_t floats) {
  thread_local hwy::AlignedFreeUniquePtr<float[]> buffer;
  thread_local int64_t size = 0;
  if (size < floats) {
    buffer = hwy::AllocateAligned<float>(static_cast<size_t>(floats));
    size = buffer ? floats : 0;
    if (!buffer) throw std::bad_alloc();
  }
  return buffer.get();
}

}  // namespace tessera::kernels
