#include "tessera/base/allocator.h"

#include <malloc.h>

#include <climits>

namespace tessera {
namespace {

std::atomic<uint64_t> current_generation{0};
std::atomic<int64_t> scratch_held{0};

}  // namespace

void keep_freed_memory() {
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, INT_MAX);
  mallopt(M_TOP_PAD, 64 << 20);
}

MemoryMeter& memory_meter() {
  // never destroyed: threads free their memory after main
  static auto* meter = new MemoryMeter;
  return *meter;
}

uint64_t scratch_generation() {
  return current_generation.load(std::memory_order_relaxed);
}

void next_scratch_generation() {
  current_generation.fetch_add(1, std::memory_order_relaxed);
  memory_meter().remove(scratch_held.exchange(0));
}

void count_scratch(int64_t bytes, uint64_t generation) {
  if (generation != scratch_generation()) return;
  scratch_held.fetch_add(bytes, std::memory_order_relaxed);
  memory_meter().add(bytes);
}

}  // namespace tessera
