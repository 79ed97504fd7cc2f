// Storage types of tensors: plain numbers and the block types of GGUF.
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
};

/// How a storage type is laid out: `block_elements` values share `block_bytes` bytes.
/// Plain types have blocks of one element.
struct DTypeLayout {
  DType dtype;
  std::string_view name;
  int32_t block_elements;
  int32_t block_bytes;
  bool is_float;  // plain floating point: the only kind that can be trained
};

const DTypeLayout& layout_of(DType dtype);
std::string_view name_of(DType dtype);
/// Throws Error(usage) that lists the known names.
DType dtype_named(std::string_view name);

inline bool is_block_type(DType dtype) {
  return dtype >= DType::q4_0;
}

/// Bytes of `n` elements; throws Error(file) when n is negative, not whole blocks, or overflows.
int64_t storage_bytes(DType dtype, int64_t n);

}  // namespace tessera
