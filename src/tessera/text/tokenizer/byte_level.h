// The byte alphabet of byte-level BPE: every byte has a printable character, so that vocabularies
// can be written as text. Bytes that are printable in Latin-1 stand for themselves, the other 68
// for U+0100 upwards in order (Radford et al. 2019, GPT-2, bytes_to_unicode).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tessera::text {

/// The UTF-8 form of the character of each byte, one or two bytes long.
const std::array<std::string, 256>& byte_characters();
/// The byte of a character; nullopt if it is not in the alphabet.
std::optional<uint8_t> byte_of_character(char32_t c);

void append_as_byte_characters(std::string& out, std::string_view bytes);
/// The bytes of a vocabulary entry; nullopt if it has a character outside the alphabet.
std::optional<std::string> bytes_of_token(std::string_view token);

}  // namespace tessera::text
