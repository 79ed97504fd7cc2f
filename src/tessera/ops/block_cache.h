// Large blocks of CPU memory that are kept for the next tensor of about their size. A step of a
// model allocates the same sizes again and again. With malloc they either are given back to the
// system and come again as zeroed pages, one fault per 4 KiB; or they come from the heap, where
// what lives longer (the keys and values of a text that is being read) settles in the holes that
// they leave, so that the next ones do not fit and the heap grows with the text. Blocks are mapped
// on their own, aligned to huge pages, and ask for them.
#pragma once

#include <cstddef>

namespace tessera::ops {

/// From now on all CPU tensors of the process come from the cache. More than once does nothing
/// more.
void use_block_cache();

struct BlockCacheStats {
  size_t live_bytes = 0;    // in tensors now
  size_t cached_bytes = 0;  // kept; both together at most 1.5 times the largest live_bytes so far
};
BlockCacheStats block_cache_stats();

/// The bytes that were asked for this block of the cache, which may hold more; 0 where the memory
/// is not a block of it.
size_t asked_of_block_cache(void* memory);

/// Returns the cached blocks to the system; the most that was in use counts from now on.
void release_block_cache();

}  // namespace tessera::ops
