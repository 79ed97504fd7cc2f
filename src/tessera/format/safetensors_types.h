// The type names of safetensors, in the order by which the reference library sorts tensors.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "tessera/base/dtype.h"

namespace tessera::format {

struct SafetensorsType {
  std::string_view name;
  int32_t bits;  // of one element
  std::optional<DType> dtype;
};

inline constexpr std::array kSafetensorsTypes = {
    SafetensorsType{"BOOL", 8, DType::boolean},
    SafetensorsType{"F4", 4, std::nullopt},
    SafetensorsType{"F6_E2M3", 6, std::nullopt},
    SafetensorsType{"F6_E3M2", 6, std::nullopt},
    SafetensorsType{"U8", 8, DType::u8},
    SafetensorsType{"I8", 8, DType::i8},
    SafetensorsType{"F8_E5M2", 8, std::nullopt},
    SafetensorsType{"F8_E4M3", 8, std::nullopt},
    SafetensorsType{"F8_E8M0", 8, std::nullopt},
    SafetensorsType{"F8_E4M3FNUZ", 8, std::nullopt},
    SafetensorsType{"F8_E5M2FNUZ", 8, std::nullopt},
    SafetensorsType{"I16", 16, DType::i16},
    SafetensorsType{"U16", 16, std::nullopt},
    SafetensorsType{"F16", 16, DType::f16},
    SafetensorsType{"BF16", 16, DType::bf16},
    SafetensorsType{"I32", 32, DType::i32},
    SafetensorsType{"U32", 32, std::nullopt},
    SafetensorsType{"F32", 32, DType::f32},
    SafetensorsType{"C64", 64, std::nullopt},
    SafetensorsType{"F64", 64, DType::f64},
    SafetensorsType{"I64", 64, DType::i64},
    SafetensorsType{"U64", 64, std::nullopt},
};

}  // namespace tessera::format
