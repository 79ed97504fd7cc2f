// Names of control tokens in published models: one table (vocabularies.json) for all uses. If a
// vocabulary has several, the first in the table is used.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera::text {

struct KnownTokens {
  /// Fill-in-the-middle: tokens before the prefix, the suffix and the middle of a text.
  struct FimTokens {
    std::string prefix, suffix, middle;
  };
  struct ChatFormat {
    std::string token;   // a token that identifies this format
    std::string format;  // a name of chat_format_names()
  };
  struct Tags {
    std::string open, close;
  };

  std::vector<FimTokens> fill_in_middle;
  std::vector<std::string> file_separators;
  std::vector<std::string> masks;
  std::string sentinel;  // of span corruption, "{}" = its number from 0
  std::vector<ChatFormat> chat_formats;
  std::vector<Tags> reasoning;  // tags around reasoning
  std::vector<Tags> languages;  // tags around a language code
};

const KnownTokens& known_tokens();

class Tokenizer;

/// The mask token: the token with the role "mask_token" in the tokenizer's files, otherwise the
/// first known name in the vocabulary, special or not.
std::optional<int32_t> mask_of(const Tokenizer& tokenizer);

/// Tokens of fill in the middle.
struct MiddleIds {
  int32_t prefix = 0, suffix = 0, middle = 0;  // before these parts of a text
  std::optional<int32_t> file;                 // before name and content of another file
};
/// The first known set of which the vocabulary has all three, special or not: some models list them
/// as ordinary added tokens.
std::optional<MiddleIds> fim_of(const Tokenizer& tokenizer);

}  // namespace tessera::text
