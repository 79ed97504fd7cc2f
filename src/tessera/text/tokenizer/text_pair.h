// What a model reads to judge a text, or two of them: the tokens with those around and between
// them, cut where they are too many.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "tessera/text/tokenizer/tokenizer.h"

namespace tessera::text {

struct ClassifierInput {
  std::vector<int64_t> ids;
  size_t second = 0;        // where the second text begins; ids.size() where there is one alone
  size_t first_begin = 0;   // tokens before the first text
  size_t first_length = 0;  // tokens of the first text
  size_t second_length = 0;
  size_t first_dropped = 0;  // tokens that the first text lost at its begin
  bool cut = false;
};

/// At most `limit` tokens, 0 = any number: of two texts the longer one loses its end first, or its
/// begin with Tokenizer::truncates_left(). Where
/// the tokenizer puts nothing between two texts, a line's end stands there. Throws Error(input) for
/// a text without tokens and a limit that leaves no room.
/// Leaves `n` tokens of a text, the first ones, or the last ones with truncates_left().
void truncate(const Tokenizer& tokenizer, std::vector<int32_t>& ids, size_t n);

ClassifierInput classifier_input(const Tokenizer& tokenizer,
                                 std::string_view first,
                                 std::optional<std::string_view> second,
                                 int64_t limit);

/// The same of texts that are tokens already.
ClassifierInput classifier_input_of_tokens(const Tokenizer& tokenizer,
                                           std::vector<int32_t> first,
                                           std::optional<std::vector<int32_t>> second,
                                           int64_t limit);

/// Tokens that stand around one text, or around and between two.
int64_t tokens_around(const Tokenizer& tokenizer, bool pair);

/// Token types of a judged text, where a model has several: 0, and 1 from the second text on.
std::vector<int64_t> types_of(const ClassifierInput& text);

}  // namespace tessera::text
