#include "tessera/convert/quantized_matrix.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/float8.h"
#include "tessera/base/threads.h"

namespace tessera::convert {

using format::TensorView;
using spec::Json;

std::string module_of(std::string_view name, std::string_view suffix) {
  return std::string(name.substr(0, name.size() - suffix.size()));
}

int bits_of(const QuantizerConfig& settings, const char* key) {
  const int64_t bits = settings.whole(key, 0);
  if (bits != 4 && bits != 8) {
    const Json absent;
    const Json* value = settings.find(key);
    settings.wrong(key, value == nullptr ? absent : *value, "4 or 8");
  }
  return static_cast<int>(bits);
}

std::vector<int32_t> order_of(const RawTensor& g_idx,
                              const QuantizedMatrix& m,
                              const std::string& file) {
  std::vector<int32_t> groups(static_cast<size_t>(m.columns));
  bool in_order = true;
  for (int64_t c = 0; c < m.columns; ++c) {
    const auto g = g_idx.at<int32_t>(c);
    if (g < 0 || g >= m.group_count())
      fail(ErrorKind::file, file, "tensor {} names group {} for column {}; there are {}",
           format::in_quotes(g_idx.name), g, c, m.group_count());
    in_order = in_order && g == c / m.group;
    groups[static_cast<size_t>(c)] = g;
  }
  return in_order ? std::vector<int32_t>{} : groups;
}

namespace {

bool is_half(float scale) {
  return f16_to_float(float_to_f16(scale)) == scale;
}

/// What all matrices of one number of bits have in common.
struct Common {
  bool middle = true, halves = true;
};

void note_common(const QuantizedMatrix& m, const std::string& file, Common& common) {
  const int64_t groups = m.group_count();
  for (int64_t row = 0; row < m.rows; ++row)
    for (int64_t g = 0; g < groups; ++g) {
      const float scale = m.scale(row, g);
      if (!std::isfinite(scale))
        fail(ErrorKind::file, file, "{}: the scale of row {}, group {} is {}; expected a number",
             format::in_quotes(m.name), row, g, scale);
      common.halves = common.halves && is_half(scale);
      common.middle = common.middle && m.zero_of(row, g) == m.middle();
    }
}

DType type_of(const QuantizedMatrix& m, const Common& common) {
  if (!m.outside_blocks().empty()) return DType::f32;
  if (m.e4m3) return DType::scaled_e4m3;
  const bool plain = common.middle && common.halves;
  if (m.bits == 4) return plain ? DType::q4_0 : DType::scaled_u4;
  return plain ? DType::q8_0 : DType::scaled_i8;
}

template <class T>
uint8_t* put(uint8_t* to, T value) {
  std::memcpy(to, &value, sizeof value);
  return to + sizeof value;
}

void put_nibbles(uint8_t* to, const uint8_t* codes) {
  for (int i = 0; i < 16; ++i) to[i] = static_cast<uint8_t>(codes[i] | codes[16 + i] << 4);
}

/// A block of 32 codes.
void put_block(DType type, const uint8_t* codes, float scale, int32_t zero, uint8_t* to) {
  constexpr int32_t kMiddle = 128;  // of eight bits: bytes are signed there
  switch (type) {
    case DType::q4_0:
      return put_nibbles(put(to, float_to_f16(scale)), codes);
    case DType::scaled_u4:
      return put_nibbles(put(put(to, scale), static_cast<uint8_t>(zero)), codes);
    case DType::scaled_e4m3:
      std::memcpy(put(to, scale), codes, kCodeRun);
      return;
    case DType::q8_0:
      to = put(to, float_to_f16(scale));
      break;
    default:
      to = put(put(to, scale), static_cast<int16_t>(zero - kMiddle));
  }
  for (int i = 0; i < kCodeRun; ++i) to[i] = codes[i] ^ uint8_t { kMiddle };
}

/// A row of any groups, in float32.
void put_floats(const QuantizedMatrix& m, int64_t row, const uint8_t* codes, uint8_t* to) {
  for (int64_t c = 0; c < m.columns; ++c) {
    const int64_t g = m.group_of(c);
    const float code =
        m.e4m3 ? e4m3_to_float(codes[c]) : static_cast<float>(codes[c] - m.zero_of(row, g));
    to = put(to, m.scale(row, g) * code);
  }
}

/// Blocks hold columns by their groups.
TensorView packed(const QuantizedMatrix& m, DType type) {
  const bool moved = type != DType::f32 && !m.groups.empty();
  const auto order = std::make_shared<const std::vector<int32_t>>(m.by_groups());
  const int64_t row_bytes = storage_bytes(type, m.columns);
  auto bytes = std::make_shared<std::vector<std::byte>>(static_cast<size_t>(
      storage_bytes(type, format::element_count(std::vector{m.rows, m.columns}))));
  auto* to = reinterpret_cast<uint8_t*>(bytes->data());
  const int64_t block = type == DType::f32 ? 0 : layout_of(type).block_bytes;
  parallel_for(parts_of(m.rows, kRowsAtOnce), 1, [&](int64_t first, int64_t last) {
    std::vector<uint8_t> codes(static_cast<size_t>(kRowsAtOnce * m.columns)),
        row_codes(static_cast<size_t>(m.columns));
    for (int64_t begin = first * kRowsAtOnce; begin < std::min(last * kRowsAtOnce, m.rows);
         begin += kRowsAtOnce) {
      const int64_t end = std::min(begin + kRowsAtOnce, m.rows);
      m.codes(begin, end, codes.data());
      for (int64_t row = begin; row < end; ++row) {
        const uint8_t* from = codes.data() + (row - begin) * m.columns;
        uint8_t* out = to + row * row_bytes;
        if (block == 0) {
          put_floats(m, row, from, out);
          continue;
        }
        if (moved) {
          for (size_t c = 0; c < row_codes.size(); ++c) row_codes[c] = from[(*order)[c]];
          from = row_codes.data();
        }
        for (int64_t c = 0; c < m.columns; c += kCodeRun, out += block) {
          const int64_t g = m.group_of((*order)[static_cast<size_t>(c)]);
          put_block(type, from + c, m.scale(row, g), m.e4m3 ? 0 : m.zero_of(row, g), out);
        }
      }
    }
  });
  return {m.name, type, {m.rows, m.columns}, *bytes, bytes, moved ? order : nullptr};
}

}  // namespace

std::vector<TensorView> stored(const std::vector<QuantizedMatrix>& matrices,
                               const std::string& file,
                               std::vector<std::string>& remarks) {
  std::map<std::pair<int, bool>, Common> common;
  const auto common_of = [&](const QuantizedMatrix& m) -> Common& {
    return common[{m.bits, m.e4m3}];
  };
  for (const QuantizedMatrix& m : matrices) note_common(m, file, common_of(m));
  std::map<std::string_view, std::vector<std::string>> outside;
  std::vector<TensorView> tensors;
  for (const QuantizedMatrix& m : matrices) {
    if (const std::string_view why = m.outside_blocks(); !why.empty())
      outside[why].push_back(m.name);
    tensors.push_back(packed(m, type_of(m, common_of(m))));
  }
  for (const auto& [why, names] : outside)
    remarks.push_back(fmt::format(
        "{} of {} quantized matrices are held in float32, as they have {}: {}{}", names.size(),
        matrices.size(), why, names.front(), names.size() > 1 ? ", ..." : ""));
  return tensors;
}

}  // namespace tessera::convert
