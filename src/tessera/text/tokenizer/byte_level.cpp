#include "tessera/text/tokenizer/byte_level.h"

#include "tessera/text/utf8.h"

namespace tessera::text {
namespace {

constexpr bool stands_for_itself(uint32_t byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

// 256 bytes and 68 characters from U+0100: indexed by code point, -1 where no byte is meant
constexpr size_t kAlphabetEnd = 256 + 68;

constexpr std::array<int16_t, kAlphabetEnd> make_bytes_by_character() {
  std::array<int16_t, kAlphabetEnd> table{};
  for (auto& entry : table) entry = -1;
  size_t next = 256;
  for (uint32_t byte = 0; byte < 256; ++byte)
    table[stands_for_itself(byte) ? byte : next++] = static_cast<int16_t>(byte);
  return table;
}
constexpr auto kBytesByCharacter = make_bytes_by_character();

}  // namespace

const std::array<std::string, 256>& byte_characters() {
  static const auto table = [] {
    std::array<std::string, 256> characters;
    for (char32_t c = 0; c < kAlphabetEnd; ++c)
      if (kBytesByCharacter[c] >= 0)
        append_character(characters[static_cast<size_t>(kBytesByCharacter[c])], c);
    return characters;
  }();
  return table;
}

std::optional<uint8_t> byte_of_character(char32_t c) {
  if (c >= kAlphabetEnd || kBytesByCharacter[c] < 0) return std::nullopt;
  return static_cast<uint8_t>(kBytesByCharacter[c]);
}

void append_as_byte_characters(std::string& out, std::string_view bytes) {
  const auto& characters = byte_characters();
  for (const char byte : bytes) out += characters[static_cast<uint8_t>(byte)];
}

std::optional<std::string> bytes_of_token(std::string_view token) {
  std::string bytes;
  bool known = true;
  for_each_character(token, [&](char32_t c, size_t, size_t) {
    const auto byte = byte_of_character(c);
    known = known && byte.has_value();
    bytes += static_cast<char>(byte.value_or(0));
  });
  if (!known) return std::nullopt;
  return bytes;
}

}  // namespace tessera::text
