// How the process keeps memory that it has freed, and how much of it computing takes.
#pragma once

#include <atomic>
#include <cstdint>

namespace tessera {

/// Large buffers come back from the heap instead of being mapped, zeroed by the kernel and unmapped
/// each time. For programs that compute with tensors; call it first in main.
void keep_freed_memory();

/// Bytes that are held, and the most that were since the last restart. What counts itself are the
/// storages of tensors (ops/tensor_memory.h) and the work memory of kernels; small containers do
/// not. Safe from several threads.
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
  /// The peak starts again from what is held now.
  void restart() { peak_.store(held(), std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> held_{0}, peak_{0};
};

MemoryMeter& memory_meter();

/// Work memory that threads keep from call to call (kernels/scratch.h) is of one generation; that
/// of an older one no longer counts, and is given back when its thread next asks for some. So the
/// first call of a new generation takes, and counts, all that it needs.
uint64_t scratch_generation();
void next_scratch_generation();
/// Counts what a thread takes (or gives back, below 0) of a generation.
void count_scratch(int64_t bytes, uint64_t generation);

}  // namespace tessera
