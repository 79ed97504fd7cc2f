// How much memory this process takes.
#pragma once

#include <cstdint>

namespace tessera {

/// Bytes in RAM; 0 where the system does not say.
int64_t resident_bytes();

/// What is resident, by what it is mapped from; all 0 where the system does not say.
struct ResidentParts {
  int64_t program = 0;    // of the executable and its libraries
  int64_t files = 0;      // of other files, as of weights
  int64_t anonymous = 0;  // heaps, tensors, stacks
  int64_t all() const { return program + files + anonymous; }
};
ResidentParts resident_parts();

}  // namespace tessera
