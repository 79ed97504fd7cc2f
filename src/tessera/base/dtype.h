// Storage types of tensors: plain numbers, the block types of GGUF, and packed types for weights of
// quantized checkpoints.
#pragma once

#include <cstdint>
#include <string_view>

namespace tessera {

enum class DType : uint8_t {
  f64,
  f32,
  f16,
  bf16,
  i64,
  i32,
  i16,
  i8,
  u8,
  boolean,
  q4_0,
  q4_1,
  q5_0,
  q5_1,
  q8_0,
  q2_k,
  q3_k,
  q4_k,
  q5_k,
  q6_k,
  mxfp4,
  iq4_nl,
  iq4_xs,
  iq1_s,
  iq1_m,
  iq2_xxs,
  iq2_xs,
  iq2_s,
  iq3_xxs,
  iq3_s,
  tq1_0,
  tq2_0,
  // 32 numbers with a float32 scale d; in memory only, not in files
  scaled_u4,    // d, a byte z, 16 bytes as in q4_0: d (code - z)
  scaled_i8,    // d, 16 bits z, 32 signed bytes: d (code - z)
  scaled_e4m3,  // d, 32 numbers of eight bits (float8.h): d times each
};

/// Layout of a storage type: `block_elements` values share `block_bytes` bytes. Plain types have
/// blocks of one element.
struct DTypeLayout {
  DType dtype;
  std::string_view name;
  int32_t block_elements;
  int32_t block_bytes;
  bool is_float;  // plain floating point: only these can be trained
};

const DTypeLayout& layout_of(DType dtype);
std::string_view name_of(DType dtype);
/// Throws Error(usage) with the known names.
DType dtype_named(std::string_view name);

inline bool is_block_type(DType dtype) {
  return dtype >= DType::q4_0;
}

/// Bytes of `n` elements; throws Error(file) if n is negative, no multiple of the block, or
/// overflows.
int64_t storage_bytes(DType dtype, int64_t n);

}  // namespace tessera
