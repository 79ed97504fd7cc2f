// Large blocks of CPU memory that are kept for the next tensor of their size. Training allocates
// the same sizes at every step: with malloc each of them is given back to the system and comes
// again as zeroed pages, one fault per 4 KiB. Blocks are aligned to huge pages and ask for them.
#pragma once

#include <cstddef>

namespace tessera::ops {

/// From now on all CPU tensors of the process come from the cache. More than once does nothing
/// more.
void use_block_cache();

struct BlockCacheStats {
  size_t live_bytes = 0;    // in tensors now
  size_t cached_bytes = 0;  // kept; never more than the largest live_bytes so far
};
BlockCacheStats block_cache_stats();

/// The bytes that were asked for this block of the cache, which may hold more; 0 where the memory
/// is not a block of it.
size_t asked_of_block_cache(void* memory);

/// Gives what is kept back to the system.
void release_block_cache();

}  // namespace tessera::ops
