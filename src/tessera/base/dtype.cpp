#include "tessera/base/dtype.h"

#include <array>
#include <limits>

#include "tessera/base/error.h"

namespace tessera {
namespace {

// K-quants: 256 values a block. q2_k: 16 scale bytes, 64 of 2-bit values, d and dmin in f16; the
// others likewise.
constexpr std::array kLayouts = {
    DTypeLayout{DType::f64, "f64", 1, 8, true},
    DTypeLayout{DType::f32, "f32", 1, 4, true},
    DTypeLayout{DType::f16, "f16", 1, 2, true},
    DTypeLayout{DType::bf16, "bf16", 1, 2, true},
    DTypeLayout{DType::i64, "i64", 1, 8, false},
    DTypeLayout{DType::i32, "i32", 1, 4, false},
    DTypeLayout{DType::i16, "i16", 1, 2, false},
    DTypeLayout{DType::i8, "i8", 1, 1, false},
    DTypeLayout{DType::u8, "u8", 1, 1, false},
    DTypeLayout{DType::boolean, "bool", 1, 1, false},
    DTypeLayout{DType::q4_0, "q4_0", 32, 2 + 16, false},
    DTypeLayout{DType::q4_1, "q4_1", 32, 2 + 2 + 16, false},
    DTypeLayout{DType::q5_0, "q5_0", 32, 2 + 4 + 16, false},
    DTypeLayout{DType::q5_1, "q5_1", 32, 2 + 2 + 4 + 16, false},
    DTypeLayout{DType::q8_0, "q8_0", 32, 2 + 32, false},
    DTypeLayout{DType::q2_k, "q2_k", 256, 16 + 64 + 2 + 2, false},
    DTypeLayout{DType::q3_k, "q3_k", 256, 32 + 64 + 12 + 2, false},
    DTypeLayout{DType::q4_k, "q4_k", 256, 2 + 2 + 12 + 128, false},
    DTypeLayout{DType::q5_k, "q5_k", 256, 2 + 2 + 12 + 32 + 128, false},
    DTypeLayout{DType::q6_k, "q6_k", 256, 128 + 64 + 16 + 2, false},
    DTypeLayout{DType::mxfp4, "mxfp4", 32, 1 + 16, false},
    DTypeLayout{DType::iq4_nl, "iq4_nl", 32, 2 + 16, false},
    DTypeLayout{DType::iq4_xs, "iq4_xs", 256, 2 + 2 + 4 + 128, false},
    DTypeLayout{DType::iq1_s, "iq1_s", 256, 2 + 32 + 16, false},
    DTypeLayout{DType::iq1_m, "iq1_m", 256, 32 + 16 + 8, false},
    DTypeLayout{DType::iq2_xxs, "iq2_xxs", 256, 2 + 64, false},
    DTypeLayout{DType::iq2_xs, "iq2_xs", 256, 2 + 64 + 8, false},
    DTypeLayout{DType::iq2_s, "iq2_s", 256, 2 + 64 + 8 + 8, false},
    DTypeLayout{DType::iq3_xxs, "iq3_xxs", 256, 2 + 64 + 32, false},
    DTypeLayout{DType::iq3_s, "iq3_s", 256, 2 + 64 + 8 + 32 + 4, false},
    DTypeLayout{DType::tq1_0, "tq1_0", 256, 48 + 4 + 2, false},
    DTypeLayout{DType::tq2_0, "tq2_0", 256, 64 + 2, false},
    DTypeLayout{DType::scaled_u4, "scaled_u4", 32, 4 + 1 + 16, false},
    DTypeLayout{DType::scaled_i8, "scaled_i8", 32, 4 + 2 + 32, false},
    DTypeLayout{DType::scaled_e4m3, "scaled_e4m3", 32, 4 + 32, false},
};

}  // namespace

const DTypeLayout& layout_of(DType dtype) {
  const auto index = static_cast<size_t>(dtype);
  require(index < kLayouts.size() && kLayouts[index].dtype == dtype, "dtype", "no layout for {}",
          index);
  return kLayouts[index];
}

std::string_view name_of(DType dtype) {
  return layout_of(dtype).name;
}

DType dtype_named(std::string_view name) {
  std::string known;
  for (const DTypeLayout& layout : kLayouts) {
    if (layout.name == name) return layout.dtype;
    known += known.empty() ? "" : ", ";
    known += layout.name;
  }
  fail(ErrorKind::usage, "dtype", "unknown type \"{}\"; known: {}", name, known);
}

int64_t storage_bytes(DType dtype, int64_t n) {
  const DTypeLayout& layout = layout_of(dtype);
  if (n < 0 || n % layout.block_elements != 0)
    fail(ErrorKind::file, "dtype", "{} elements of type {}: expected a multiple of {}", n,
         layout.name, layout.block_elements);
  const int64_t blocks = n / layout.block_elements;
  if (blocks > std::numeric_limits<int64_t>::max() / layout.block_bytes)
    fail(ErrorKind::file, "dtype", "{} elements of type {} overflow 64 bits", n, layout.name);
  return blocks * layout.block_bytes;
}

}  // namespace tessera
