// The order of work under a causal mask, where what comes later sees more.
#pragma once

#include <cstdint>

namespace tessera::kernels {

/// Of n tiles or queries the one that is the i-th to be done: first, last, second, last but one
/// ..., so that equal contiguous shares are equal work.
inline int64_t balanced(int64_t i, int64_t n) {
  return i % 2 == 0 ? i / 2 : n - 1 - i / 2;
}

}  // namespace tessera::kernels
