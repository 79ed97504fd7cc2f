// Sizes of metadata values, and ggml's numbering of tensor types with their layout, which the
// formats of ggml's programs share.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "tessera/base/dtype.h"
#include "tessera/format/file_source.h"
#include "tessera/format/gguf.h"

namespace tessera::format {

/// Bytes of a number or boolean, 0 for strings and arrays. `type` is a known one.
inline size_t gguf_number_size(GgufType type) {
  constexpr std::array<uint8_t, 13> kBytes = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return kBytes.at(static_cast<size_t>(type));
}

struct GgmlType {
  uint32_t number;
  std::string_view name;
  int32_t block_elements;
  int32_t block_bytes;
  std::optional<DType> dtype;  // must then have the same layout; gguf_test holds them together
};

// Missing numbers are types that ggml has removed.
inline constexpr std::array kGgmlTypes = {
    GgmlType{0, "F32", 1, 4, DType::f32},
    GgmlType{1, "F16", 1, 2, DType::f16},
    GgmlType{2, "Q4_0", 32, 18, DType::q4_0},
    GgmlType{3, "Q4_1", 32, 20, DType::q4_1},
    GgmlType{6, "Q5_0", 32, 22, DType::q5_0},
    GgmlType{7, "Q5_1", 32, 24, DType::q5_1},
    GgmlType{8, "Q8_0", 32, 34, DType::q8_0},
    GgmlType{9, "Q8_1", 32, 40, std::nullopt},
    GgmlType{10, "Q2_K", 256, 84, DType::q2_k},
    GgmlType{11, "Q3_K", 256, 110, DType::q3_k},
    GgmlType{12, "Q4_K", 256, 144, DType::q4_k},
    GgmlType{13, "Q5_K", 256, 176, DType::q5_k},
    GgmlType{14, "Q6_K", 256, 210, DType::q6_k},
    GgmlType{15, "Q8_K", 256, 292, std::nullopt},
    GgmlType{16, "IQ2_XXS", 256, 66, DType::iq2_xxs},
    GgmlType{17, "IQ2_XS", 256, 74, DType::iq2_xs},
    GgmlType{18, "IQ3_XXS", 256, 98, DType::iq3_xxs},
    GgmlType{19, "IQ1_S", 256, 50, DType::iq1_s},
    GgmlType{20, "IQ4_NL", 32, 18, DType::iq4_nl},
    GgmlType{21, "IQ3_S", 256, 110, DType::iq3_s},
    GgmlType{22, "IQ2_S", 256, 82, DType::iq2_s},
    GgmlType{23, "IQ4_XS", 256, 136, DType::iq4_xs},
    GgmlType{24, "I8", 1, 1, DType::i8},
    GgmlType{25, "I16", 1, 2, DType::i16},
    GgmlType{26, "I32", 1, 4, DType::i32},
    GgmlType{27, "I64", 1, 8, DType::i64},
    GgmlType{28, "F64", 1, 8, DType::f64},
    GgmlType{29, "IQ1_M", 256, 56, DType::iq1_m},
    GgmlType{30, "BF16", 1, 2, DType::bf16},
    GgmlType{34, "TQ1_0", 256, 54, DType::tq1_0},
    GgmlType{35, "TQ2_0", 256, 66, DType::tq2_0},
    GgmlType{39, "MXFP4", 32, 17, DType::mxfp4},
    GgmlType{40, "NVFP4", 64, 36, std::nullopt},
    GgmlType{41, "Q1_0", 128, 18, std::nullopt},
};

/// The type of a storage type; null where the format has none.
inline const GgmlType* ggml_type_of(DType dtype) {
  for (const GgmlType& type : kGgmlTypes)
    if (type.dtype == dtype) return &type;
  return nullptr;
}

/// Bytes of a tensor whose rows are whole blocks, or nothing when they do not fit 64 bits.
inline std::optional<int64_t> storage_bytes_of(const GgmlType& type,
                                               std::span<const int64_t> shape) {
  const auto count = checked_element_count(shape);
  return count ? checked_multiply(*count / type.block_elements, type.block_bytes) : std::nullopt;
}

}  // namespace tessera::format
