// Goldens of tests/golden/blocks.
#pragma once

#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tessera/base/dtype.h"
#include "tessera/spec/json.h"

namespace tessera::kernels::test {

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
