// How the process keeps memory that it has freed.
#pragma once

namespace tessera {

/// Large buffers come back from the heap instead of being mapped, zeroed by the kernel and unmapped
/// each time. For programs that compute with tensors; call it first in main.
void keep_freed_memory();

}  // namespace tessera
