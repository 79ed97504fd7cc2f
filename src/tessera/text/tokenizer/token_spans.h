// Positions of tokens in their text (offsets).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/text/tokenizer/tokenizer.h"

namespace tessera::text {

/// A token and its bytes [begin, end) in the text. If a tokenizer changes the text (lower case),
/// all tokens of a word have the range of the word.
struct TokenSpan {
  int32_t id = 0;
  size_t begin = 0, end = 0;
};

/// The tokens of a text without special tokens. A span does not include spaces before the token.
/// Throws Error(input) for a tokenizer that neither reproduces the text nor tokenizes its words
/// independently.
std::vector<TokenSpan> token_spans(const Tokenizer& tokenizer, std::string_view text);

/// Tokens of words that are split already, as within a text.
class WordTokens {
 public:
  explicit WordTokens(Tokenizer tokenizer);
  /// `first`: the first word of the text.
  std::vector<int32_t> of(const std::string& word, bool first) const;

 private:
  Tokenizer tokenizer_;
  bool with_space_;  // a word after another begins with the space between them
};

}  // namespace tessera::text
