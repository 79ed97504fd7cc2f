// Goldens of tests/golden/blocks; blocks of random bytes of every type.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "tessera/base/dtype.h"
#include "tessera/base/error_type.h"
#include "tessera/kernels/weights/blocks.h"
#include "tessera/spec/json.h"

namespace tessera::kernels::test {

/// Every block type of DType.
inline std::vector<DType> block_types() {
  std::vector<DType> out;
  try {
    for (int i = 0;; ++i) {
      const DType type = layout_of(static_cast<DType>(i)).dtype;
      if (is_block_type(type)) out.push_back(type);
    }
  } catch (const Error&) {  // the first number without a layout
  }
  return out;
}

/// `blocks` blocks of random bytes whose numbers are finite, the largest of each between 2^-10 and
/// 16.
inline std::vector<uint8_t> random_blocks(DType type, int64_t blocks, uint32_t seed) {
  std::mt19937 random(seed);
  const auto size = static_cast<size_t>(layout_of(type).block_bytes);
  std::vector<uint8_t> out(static_cast<size_t>(blocks) * size);
  std::vector<float> numbers(static_cast<size_t>(layout_of(type).block_elements));
  const auto in_range = [&](const uint8_t* block) {
    dequantize_ref(type, block, std::ssize(numbers), numbers.data());
    float largest = 0;
    for (const float number : numbers) {
      if (!std::isfinite(number)) return false;
      largest = std::max(largest, std::abs(number));
    }
    return largest >= 0x1p-10F && largest <= 16;
  };
  for (uint8_t* block = out.data(); block != out.data() + out.size();) {
    std::generate_n(block, size, [&] { return static_cast<uint8_t>(random()); });
    if (in_range(block)) block += size;
  }
  return out;
}

inline std::vector<uint8_t> from_hex(const std::string& hex) {
  std::vector<uint8_t> bytes(hex.size() / 2);
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<uint8_t>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
  return bytes;
}

inline std::vector<float> floats_from_hex(const std::string& hex) {
  const auto bytes = from_hex(hex);
  std::vector<float> values(bytes.size() / 4);
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

inline spec::Json block_json(const std::string& name) {
  const std::string path =
      std::string(TESSERA_SOURCE_DIR) + "/tests/golden/blocks/" + name + ".json";
  std::ifstream file(path);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  return spec::parse_json(text, path);
}

struct BlockGolden {
  std::vector<uint8_t> blocks;
  std::vector<float> values;
};

/// `prefix`: "" of what is read, "to_" of what is written.
inline BlockGolden block_golden(DType type, const std::string& prefix = "") {
  const auto json = block_json(prefix + std::string(name_of(type)));
  return {from_hex(json["blocks"].get<std::string>()),
          floats_from_hex(json["values"].get<std::string>())};
}

}  // namespace tessera::kernels::test
