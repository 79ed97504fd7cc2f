#include "tessera/format/file_source.h"

#include <algorithm>

namespace tessera::format {
namespace {

// Bytes of the well-formed UTF-8 character at the start of `text` (Unicode 15, table 3-7), else 0.
size_t character_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;
  const bool overlong = (lead == 0xe0 && byte(1) < 0xa0) || (lead == 0xf0 && byte(1) < 0x90);
  const bool surrogate = lead == 0xed && byte(1) > 0x9f;
  const bool beyond = lead == 0xf4 && byte(1) > 0x8f;
  return overlong || surrogate || beyond ? 0 : length;
}

// C0, DEL and C1: what a terminal might obey, and what would break a line.
bool is_control(std::string_view character) {
  const auto lead = static_cast<uint8_t>(character[0]);
  if (character.size() == 1) return lead < 0x20 || lead == 0x7f;
  return character.size() == 2 && lead == 0xc2 && static_cast<uint8_t>(character[1]) < 0xa0;
}

}  // namespace

std::string printable(std::string_view text, size_t limit) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    if (i >= limit) return out + "...";
    const size_t length = character_length(text.substr(i));
    const auto character = text.substr(i, std::max<size_t>(length, 1));
    if (length > 0 && !is_control(character)) {
      out += character;
    } else {
      for (const char c : character) out += fmt::format("\\x{:02x}", static_cast<uint8_t>(c));
    }
    i += character.size();
  }
  return out;
}

std::string in_quotes(std::string_view name) {
  return '"' + printable(name, 100) + '"';
}

void FileSource::refuse(std::string_view what) const {
  throw Error(ErrorKind::file, format,
              fmt::format("{}: {}", printable(file), printable(what, 2000)));
}

}  // namespace tessera::format
