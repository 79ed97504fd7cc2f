#include "tessera/base/base64.h"

#include <algorithm>
#include <array>
#include <cstdint>

namespace tessera {
namespace {

constexpr std::string_view kDigits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

}  // namespace

std::string base64(std::string_view bytes) {
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t n = std::min<size_t>(3, bytes.size() - i);
    uint32_t word = 0;
    for (size_t k = 0; k < 3; ++k)
      word = word << 8 | (k < n ? static_cast<unsigned char>(bytes[i + k]) : 0u);
    for (size_t k = 0; k < 4; ++k) out += k <= n ? kDigits[word >> (18 - 6 * k) & 63] : '=';
  }
  return out;
}

std::optional<std::string> bytes_of_base64(std::string_view text) {
  std::array<int, 256> digit;
  digit.fill(-1);
  for (size_t i = 0; i < kDigits.size(); ++i)
    digit[static_cast<uint8_t>(kDigits[i])] = static_cast<int>(i);
  if (text.size() % 4 != 0) return std::nullopt;
  const size_t padding = text.ends_with("==") ? 2 : text.ends_with("=") ? 1 : 0;
  text.remove_suffix(padding);
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3 + 2);
  uint32_t bits = 0;
  int n_bits = 0;
  for (const char c : text) {
    if (digit[static_cast<uint8_t>(c)] < 0) return std::nullopt;
    bits = bits << 6 | static_cast<uint32_t>(digit[static_cast<uint8_t>(c)]);
    n_bits += 6;
    if (n_bits < 8) continue;
    n_bits -= 8;
    bytes += static_cast<char>(bits >> n_bits & 0xFF);
  }
  // the unused bits are zero in the canonical encoding
  if ((bits & ((1u << n_bits) - 1)) != 0) return std::nullopt;
  return bytes;
}

}  // namespace tessera
