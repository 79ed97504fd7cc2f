// The whole numbers that blocks store, apart from their scales: what a search or a rounding has
// chosen, put into the bytes of a block.
#pragma once

#include <cstdint>

#include "tessera/base/dtype.h"

namespace tessera::kernels {

/// Twice the values of e2m1, which codes of mxfp4 are.
inline constexpr int8_t kTwiceE2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/// How many codes an element has, 0 .. count - 1; 0 for types without codes that can be put.
/// Codes of q8_0 are -127 .. 127 and 127.
int code_count(DType type);

/// Whether values rise or fall by equal steps from code to code (mxfp4 and iq4_* have levels).
bool has_even_codes(DType type);

/// Stores the codes of a block's elements; scales and minima stay as they are.
void put_codes(DType type, const uint8_t* codes, uint8_t* block);

}  // namespace tessera::kernels
