// How much memory this process takes.
#pragma once

#include <cstdint>

namespace tessera {

/// Bytes in RAM; 0 where the system does not say.
int64_t resident_bytes();

}  // namespace tessera
