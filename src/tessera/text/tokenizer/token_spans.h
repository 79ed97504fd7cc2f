// Where tokens stand in the text that they were made of, for those who mark parts of a text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/text/tokenizer/tokenizer.h"

namespace tessera::text {

/// A token and the bytes [begin, end) of the text that it is of. Where a tokenizer changes a text
/// (lower case), all tokens of a word have the whole word.
struct TokenSpan {
  int32_t id = 0;
  size_t begin = 0, end = 0;
};

/// The tokens of a text, nothing put around them. Spaces before a token are not of its span. Throws
/// Error(input) for a tokenizer that neither gives the text back nor treats its words one by one.
std::vector<TokenSpan> token_spans(const Tokenizer& tokenizer, std::string_view text);

/// Tokens of words that stand apart already, as they are within a text.
class WordTokens {
 public:
  explicit WordTokens(Tokenizer tokenizer);
  /// `first`: nothing stands before it.
  std::vector<int32_t> of(const std::string& word, bool first) const;

 private:
  Tokenizer tokenizer_;
  bool with_space_;  // a word behind another begins with the space between them
};

}  // namespace tessera::text
