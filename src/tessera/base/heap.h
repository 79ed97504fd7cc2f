// The process's heaps (malloc's arenas): how many there are, what is in them, and how what was
// freed goes back to the system.
#pragma once

#include <cstdint>

namespace tessera {

/// At most so many heaps for all threads together. Each thread otherwise gets one of its own, with
/// holes of its own, and the free end of which never goes back to the system: that of the first
/// heap alone does. For programs that are to shrink again; call it before any thread begins.
void limit_heaps(int heaps);

/// What was freed goes back to the system: whole pages, also between blocks that are in use. Takes
/// milliseconds for each 100 MB; the next allocations have their pages mapped again.
void give_back_freed_memory();

/// Of all heaps together. `free` is an upper bound of what is resident: it holds what was never
/// touched.
struct HeapUse {
  int64_t in_use = 0, free = 0;
};
HeapUse heap_use();

}  // namespace tessera
