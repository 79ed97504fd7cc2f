// Per-thread work memory of the kernels: grows to the largest request and is kept.
#pragma once

#include <hwy/aligned_allocator.h>

#include <cstdint>
#include <new>

#include "tessera/base/allocator.h"

namespace tessera::kernels {

/// One buffer, which counts itself.
class ScratchBuffer {
 public:
  ScratchBuffer() = default;
  ScratchBuffer(const ScratchBuffer&) = delete;
  ScratchBuffer& operator=(const ScratchBuffer&) = delete;
  ~ScratchBuffer() { release(); }

  float* at_least(int64_t floats) {
    const uint64_t generation = scratch_generation();
    if (size_ < floats || (size_ > 0 && generation_ != generation)) {
      release();
      generation_ = generation;
      if (floats == 0) return nullptr;
      buffer_ = hwy::AllocateAligned<float>(static_cast<size_t>(floats));
      if (!buffer_) throw std::bad_alloc();
      size_ = floats;
      count_scratch(bytes(), generation_);
    }
    return buffer_.get();
  }

 private:
  int64_t bytes() const { return size_ * static_cast<int64_t>(sizeof(float)); }
  void release() {
    count_scratch(-bytes(), generation_);
    buffer_.reset();
    size_ = 0;
  }

  hwy::AlignedFreeUniquePtr<float[]> buffer_;
  int64_t size_ = 0;
  uint64_t generation_ = 0;
};

/// At least `floats` floats, aligned to a cache line, not initialised. One buffer per thread and
/// slot: a second call with the same slot takes the memory of the first.
template <int slot>
float* scratch(int64_t floats) {
  thread_local ScratchBuffer buffer;
  return buffer.at_least(floats);
}

}  // namespace tessera::kernels
