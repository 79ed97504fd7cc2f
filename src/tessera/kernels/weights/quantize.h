// Float32 to block types of GGUF.
//
// Types of 32 elements, and ternary ones (tq1_0, tq2_0): the scale is that of the largest magnitude
// (q8_0, q4_0, q5_0, mxfp4, tq*) or of the range (q4_1, q5_1), in float32 for the rounding and in
// float16 where it is stored; bytes are equal to those of gguf.quants.quantize of the PyPI package
// gguf 0.19. K types and iq4_*: scales (and minima) of 16 or 32 elements are searched for on a
// grid, for the least weighted error; bytes are equal to those of ggml_quantize_chunk of ggml
// (llama-cpp-python 0.3.36). A number's weight grows with its magnitude; with the importance of the
// columns, which ggml calls an importance matrix, errors count by it too, and types of 32 search
// likewise.
//
// Differences: a block whose scale is below 2^-126, of mxfp4 one below 2^-124, is zeros; numbers
// that are not finite are refused.
#pragma once

#include <cstdint>

#include "tessera/base/dtype.h"

namespace tessera::kernels {

/// Whether quantize writes this type: the block types of GGUF but IQ1 to IQ3.
bool can_quantize(DType type);

/// dst = the blocks of src[0..n); dst has storage_bytes(type, n) bytes and may be unaligned. A
/// block's bytes depend on its own numbers alone. Throws Error(internal) for another type or n that
/// is no whole blocks, Error(input) for a number that is not finite.
void quantize(DType type, const float* src, int64_t n, void* dst);

/// The same of `rows` rows of k numbers, whole blocks, where errors in column i count
/// importance[i] >= 0 times; null = all the same. Bytes of a row depend on it alone. q8_0 and mxfp4
/// have nothing to choose, like ternary types, and ignore the importance.
void quantize_rows(
    DType type, const float* src, int64_t rows, int64_t k, const float* importance, void* dst);

}  // namespace tessera::kernels
