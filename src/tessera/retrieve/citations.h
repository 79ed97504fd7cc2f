// Passages before a question, and which of them an answer names. Torch-free.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tessera/text/tokenizer/tokenizer.h"

namespace tessera::retrieve {

/// A passage and where it stands, such as "notes/a.md:3-10".
struct Source {
  std::string where, text;
};

struct PromptWithPassages {
  std::string prompt;   // instructions, passages [1], [2], ... and the question
  size_t passages = 0;  // how many there was room for
  bool cut = false;     // whether the last of them lost its end
};

/// The question behind as many of the passages, the best first, as `tokens` tokens of `tokenizer`
/// have room for; the last one may be cut behind a line. Without a passage the question alone.
PromptWithPassages augment_prompt(std::string_view question,
                                  const std::vector<Source>& found,
                                  int64_t tokens,
                                  const text::Tokenizer& tokenizer);

/// Numbers 1 .. n that an answer names in brackets, as in "[2]" and "[1, 3]", each once, in order.
std::vector<size_t> cited(std::string_view answer, size_t n);

}  // namespace tessera::retrieve
