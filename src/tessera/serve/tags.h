// Marks within a text that comes in pieces.
#pragma once

#include <algorithm>
#include <string_view>

namespace tessera::serve {

inline constexpr std::string_view kSpace = " \t\r\n";

/// How many of the text's last bytes may be the beginning of the tag.
inline size_t beginning_of(std::string_view tag, std::string_view text) {
  size_t n = std::min(tag.size() - 1, text.size());
  while (n > 0 && text.substr(text.size() - n) != tag.substr(0, n)) --n;
  return n;
}

}  // namespace tessera::serve
