// Resident memory of this process.
#pragma once

#include <cstdint>

namespace tessera {

/// Bytes in RAM; 0 if the system does not report it.
int64_t resident_bytes();

/// Resident memory by origin; all 0 if the system does not report it.
struct ResidentParts {
  int64_t program = 0;    // of the executable and its libraries
  int64_t files = 0;      // of other files, as of weights
  int64_t anonymous = 0;  // heaps, tensors, stacks
  int64_t all() const { return program + files + anonymous; }
};
ResidentParts resident_parts();

}  // namespace tessera
