// Classifier inputs: the tokens of a text or a pair with special tokens, truncated to a limit.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "tessera/text/tokenizer/tokenizer.h"

namespace tessera::text {

struct ClassifierInput {
  std::vector<int64_t> ids;
  size_t second = 0;        // start of the second text; ids.size() for a single text
  size_t first_begin = 0;   // tokens before the first text
  size_t first_length = 0;  // tokens of the first text
  size_t second_length = 0;
  size_t first_dropped = 0;  // tokens removed from the beginning of the first text
  bool cut = false;
};

/// Truncates a text to `n` tokens, the first ones, or the last ones with truncates_left().
void truncate(const Tokenizer& tokenizer, std::vector<int32_t>& ids, size_t n);

/// Tokenizes a text or a pair to at most `limit` tokens, 0 = no limit: the longer text of a pair is
/// truncated first, at its end, or at its beginning with Tokenizer::truncates_left(). If the
/// tokenizer has no separator for pairs, it is a line feed. Throws Error(input) for a text without
/// tokens and a limit that leaves no room.
ClassifierInput classifier_input(const Tokenizer& tokenizer,
                                 std::string_view first,
                                 std::optional<std::string_view> second,
                                 int64_t limit);

/// The same for tokenized texts.
ClassifierInput classifier_input_of_tokens(const Tokenizer& tokenizer,
                                           std::vector<int32_t> first,
                                           std::optional<std::vector<int32_t>> second,
                                           int64_t limit);

/// Number of special tokens around one text, or around and between two.
int64_t tokens_around(const Tokenizer& tokenizer, bool pair);

/// Token types, for models with several: 0, and 1 from the second text on.
std::vector<int64_t> types_of(const ClassifierInput& text);

}  // namespace tessera::text
