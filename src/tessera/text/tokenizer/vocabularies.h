// Control tokens as the vocabularies of published models spell them: vocabularies.json, one table
// for all who look for such a token. Of several spellings the first that a vocabulary has holds.
#pragma once

#include <array>
#include <string>
#include <vector>

namespace tessera::text {

struct KnownTokens {
  /// Fill-in-the-middle: tokens before the prefix, the suffix and the middle of a text.
  struct Middle {
    std::string prefix, suffix, middle;
  };
  struct ChatFormat {
    std::string token;   // that a vocabulary of this format has
    std::string format;  // a name of chat_format_names()
  };
  struct Tags {
    std::string open, close;
  };

  std::vector<Middle> fill_in_middle;
  std::vector<std::string> file_separators;
  std::vector<std::string> masks;
  std::string sentinel;  // of span corruption, "{}" its number from 0
  std::vector<ChatFormat> chat_formats;
  std::vector<Tags> reasoning;  // around what a model writes before its answer
  std::vector<Tags> languages;  // around the code of a language
};

const KnownTokens& known_tokens();

}  // namespace tessera::text
