#include "tessera/base/allocator.h"

#include <malloc.h>

#include <climits>

namespace tessera {

void keep_freed_memory() {
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, INT_MAX);
  mallopt(M_TOP_PAD, 64 << 20);
}

}  // namespace tessera
