// How the process reuses freed memory, and a meter of the memory in use.
#pragma once

#include <atomic>
#include <cstdint>

namespace tessera {

/// Large buffers are reused from the heap instead of being mapped, zeroed by the kernel and
/// unmapped each time. For programs that compute with tensors; call it first in main.
void keep_freed_memory();

/// Current and peak bytes since the last restart. Counted are tensor storages (ops/tensor_memory.h)
/// and work memory of kernels, not small containers. Thread-safe.
class MemoryMeter {
 public:
  void add(int64_t bytes) {
    const int64_t now = held_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    int64_t peak = peak_.load(std::memory_order_relaxed);
    while (now > peak && !peak_.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
    }
  }
  void remove(int64_t bytes) { held_.fetch_sub(bytes, std::memory_order_relaxed); }
  int64_t held() const { return held_.load(std::memory_order_relaxed); }
  int64_t peak() const { return peak_.load(std::memory_order_relaxed); }
  /// Restarts the peak from the current bytes.
  void restart() { peak_.store(held(), std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> held_{0}, peak_{0};
};

MemoryMeter& memory_meter();

/// Work memory that threads reuse between calls (kernels/scratch.h) has a generation; memory of an
/// older generation is not counted, and is freed at its thread's next request. So the first call of
/// a new generation allocates, and counts, everything that it needs.
uint64_t scratch_generation();
void next_scratch_generation();
/// Counts bytes that a thread allocates (or frees, below 0) in a generation.
void count_scratch(int64_t bytes, uint64_t generation);

}  // namespace tessera
