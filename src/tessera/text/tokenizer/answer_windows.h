// Extractive question answering: a question and windows of its context, each of a length that fits
// the model.
#pragma once

#include <string_view>
#include <vector>

#include "tessera/text/tokenizer/token_spans.h"

namespace tessera::text {

struct AnswerWindow {
  std::vector<int64_t> ids;
  size_t second = 0;               // start of the second text, for token types
  size_t context_begin = 0;        // first token of the context among ids
  std::vector<TokenSpan> context;  // position of each context token in the text
};

/// Windows of at most `length` tokens; adjacent ones share `stride` context tokens. Throws
/// Error(input) if the question leaves no room, and the errors of token_spans().
std::vector<AnswerWindow> answer_windows(const Tokenizer& tokenizer,
                                         std::string_view question,
                                         std::string_view context,
                                         int64_t length,
                                         int64_t stride);

}  // namespace tessera::text
