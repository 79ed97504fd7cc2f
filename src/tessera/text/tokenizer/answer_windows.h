// A question and a text that may hold its answer, in windows of a length that a model reads: each
// has the question, and its part of the text behind it.
#pragma once

#include <string_view>
#include <vector>

#include "tessera/text/tokenizer/token_spans.h"

namespace tessera::text {

struct AnswerWindow {
  std::vector<int64_t> ids;
  size_t second = 0;               // where the second of the two texts begins, for token types
  size_t context_begin = 0;        // first token of the context among ids
  std::vector<TokenSpan> context;  // where each token of the context in it stands in the text
};

/// Windows of at most `length` tokens, of which two neighbours share `stride` of the context.
/// Throws Error(input) where the question leaves no room, and what token_spans() throws.
std::vector<AnswerWindow> answer_windows(const Tokenizer& tokenizer,
                                         std::string_view question,
                                         std::string_view context,
                                         int64_t length,
                                         int64_t stride);

}  // namespace tessera::text
