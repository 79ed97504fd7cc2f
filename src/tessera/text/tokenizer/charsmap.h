// Precompiled character maps of SentencePiece: replacements of prefixes, as a double array
// (Darts-clone's units, https://github.com/s-yata/darts-clone) and a pool of strings.
//   u32 bytes of the trie, its units (u32 each, little endian), strings that end in a zero byte
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::text {

class Charsmap {
 public:
  /// Throws Error(file) naming `where` if a path leads out of the trie, a replacement lies outside
  /// of the pool or begins inside a character, or the pool is not UTF-8.
  Charsmap(std::string_view bytes, const std::string& where);

  struct Match {
    size_t size;  // bytes of the text
    std::string_view replacement;
  };
  /// The shortest, or the longest replaced prefix of `text`; keys end at a zero byte.
  std::optional<Match> shortest(std::string_view text) const { return match(text, true); }
  std::optional<Match> longest(std::string_view text) const { return match(text, false); }

 private:
  std::optional<Match> match(std::string_view text, bool first) const;
  std::string_view replacement(uint32_t unit) const;

  std::vector<uint32_t> units_;
  std::string pool_;
};

}  // namespace tessera::text
