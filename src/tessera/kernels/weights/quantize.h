// Float32 to block types of GGUF, each block of 32 rounded to the nearest of what it can say.
//
// Bytes are equal to those of gguf.quants.quantize of the PyPI package gguf 0.19, which are ggml's
// (quantize_row_*_ref of ggml-quants.c): the scale is that of the largest magnitude (q8_0, q4_0,
// q5_0) or of the range (q4_1, q5_1), in float32 for the rounding and in float16 where it is
// stored. No search for better scales, and no K-quants. A block whose scale is below 2^-126 is
// zeros.
#pragma once

#include <cstdint>

#include "tessera/base/dtype.h"

namespace tessera::kernels {

/// Whether quantize writes this type: q8_0, q4_0, q4_1, q5_0 and q5_1.
bool can_quantize(DType type);

/// dst = the blocks of src[0..n); dst has storage_bytes(type, n) bytes and may be unaligned. A
/// block's bytes depend on its 32 numbers alone. Throws Error(internal) for another type or n that
/// is no whole blocks, Error(usage) for a number that is not finite.
void quantize(DType type, const float* src, int64_t n, void* dst);

}  // namespace tessera::kernels
