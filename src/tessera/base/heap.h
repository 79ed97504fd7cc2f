// The process's heaps (malloc arenas): their number, their contents, and returning freed memory to
// the system.
#pragma once

#include <cstdint>

namespace tessera {

/// Limits the number of heaps for all threads. By default each thread gets one, with its own
/// fragmentation, and only the first heap returns its free end to the system. For programs that
/// must shrink; call it before any thread starts.
void limit_heaps(int heaps);

/// Returns freed memory to the system: whole pages, also between used blocks. Takes milliseconds
/// per 100 MB; later allocations map pages again.
void give_back_freed_memory();

/// Over all heaps. `free` is an upper bound of resident memory: it includes pages that were never
/// touched.
struct HeapUse {
  int64_t in_use = 0, free = 0;
};
HeapUse heap_use();

}  // namespace tessera
