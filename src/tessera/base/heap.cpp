#include "tessera/base/heap.h"

#include <malloc.h>

namespace tessera {

void limit_heaps(int heaps) {
  mallopt(M_ARENA_MAX, heaps);
}

void give_back_freed_memory() {
  malloc_trim(0);
}

HeapUse heap_use() {
  const struct mallinfo2 info = mallinfo2();
  return {static_cast<int64_t>(info.uordblks + info.hblkhd), static_cast<int64_t>(info.fordblks)};
}

}  // namespace tessera
