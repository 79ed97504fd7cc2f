// Launching the kernels of weights in blocks (kernels/packed.cuh), by storage type.
#pragma once

#include "tessera/base/dtype.h"
#include "tessera/cuda/kernels/packed.cuh"
#include "tessera/cuda/launch.h"

namespace tessera::cuda {

/// The types that they read.
inline constexpr DType kPackedTypes[] = {
#define TESSERA_PACKED_FORMAT(type, Format) DType::type,
#include "tessera/cuda/packed_formats.def"
#undef TESSERA_PACKED_FORMAT
};
bool reads_packed(DType type);
/// Rows of x that one packed_product() computes at most.
inline constexpr int kMostPackedRows = 8;

/// y = x W^T (+ bias) for 1 to kMostPackedRows rows of x. A row's result does not depend on the
/// other rows.
void packed_product(DType type, const PackedProductArguments& in, const Stream& stream);
/// Rows of W, decoded: the values of kernels::dequantize, or those rounded to bf16.
void unpack(DType type, const UnpackArguments<float>& in, const Stream& stream);
void unpack(DType type, const UnpackArguments<uint16_t>& in, const Stream& stream);

}  // namespace tessera::cuda
