// Per-thread work memory of the kernels: grows to the largest request and is kept.
#pragma once

#include <hwy/aligned_allocator.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <new>

#include "tessera/base/allocator.h"

namespace tessera::kernels {

/// For tests: while one lives, work memory is full of NaN whenever it is handed out, so that a
/// kernel that reads what it did not write gives itself away.
class PoisonedScratch {
 public:
  PoisonedScratch() { ++living_; }
  ~PoisonedScratch() { --living_; }
  PoisonedScratch(const PoisonedScratch&) = delete;
  PoisonedScratch& operator=(const PoisonedScratch&) = delete;
  static bool active() { return living_.load(std::memory_order_relaxed) > 0; }

 private:
  inline static std::atomic<int> living_{0};
};

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
    // all bits set are a NaN
    if (PoisonedScratch::active())
      std::memset(buffer_.get(), 0xff, static_cast<size_t>(floats) * sizeof(float));
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

/// At least `floats` floats, aligned to a cache line, uninitialized. One buffer per thread and
/// slot: a second call with the same slot takes the memory of the first.
template <int slot>
float* scratch(int64_t floats) {
  thread_local ScratchBuffer buffer;
  return buffer.at_least(floats);
}

}  // namespace tessera::kernels
