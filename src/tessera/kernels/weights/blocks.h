// Storage types to float32: plain 16-bit floats, the block types of GGUF, and those of quantized
// folders, whose values are rounded once.
//
// Values of GGUF's are bit-equal to gguf.quants.dequantize of the PyPI package gguf 0.19 (NaN payloads
// aside, and blocks of MXFP4 whose scale is below 2^-125, which are 0 here). Layouts: ggml-common.h
// of ggml; an element's value is d * q, d * q + m or d * s * q - dmin * m, rounded to float32 once:
// the products alone are exact there.
#pragma once

#include <cstdint>

#include "tessera/base/dtype.h"

namespace tessera::kernels {

/// What the codes of iq4_nl and iq4_xs stand for.
inline constexpr int8_t kLevels[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                       1,    13,   25,  38,  53,  69,  89,  113};

/// Whether dequantize and matmul read this type: f32, f16, bf16 and every block type of DType.
bool can_dequantize(DType type);

/// dst[0..n) = the n values stored at src; src may be unaligned. n must be whole blocks.
/// Throws Error(internal) for another type or a broken block.
void dequantize(DType type, const void* src, int64_t n, float* dst);

/// The same, one element after another: the definition that tests hold dequantize to.
void dequantize_ref(DType type, const void* src, int64_t n, float* dst);

}  // namespace tessera::kernels
