// Control tokens as the vocabularies of published models spell them: vocabularies.json, one table
// for all who look for such a token. Of several spellings the first that a vocabulary has holds.
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
    std::string token;   // that a vocabulary of this format has
    std::string format;  // a name of chat_format_names()
  };
  struct Tags {
    std::string open, close;
  };

  std::vector<FimTokens> fill_in_middle;
  std::vector<std::string> file_separators;
  std::vector<std::string> masks;
  std::string sentinel;  // of span corruption, "{}" its number from 0
  std::vector<ChatFormat> chat_formats;
  std::vector<Tags> reasoning;  // around what a model writes before its answer
  std::vector<Tags> languages;  // around the code of a language
};

const KnownTokens& known_tokens();

class Tokenizer;

/// The mask: the token that the tokenizer's files give this role ("mask_token"), else the first
/// known spelling that the vocabulary has, called special or not.
std::optional<int32_t> mask_of(const Tokenizer& tokenizer);

/// Tokens of fill-in-the-middle.
struct MiddleIds {
  int32_t prefix = 0, suffix = 0, middle = 0;  // before these parts of a text
  std::optional<int32_t> file;                 // before the name and the text of another file
};
/// The first known spelling of which the vocabulary has all three, called special or not: some
/// models list them as ordinary added tokens.
std::optional<MiddleIds> fim_of(const Tokenizer& tokenizer);

}  // namespace tessera::text
