// Prompt augmentation for RAG and citations in answers. Torch-free.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tessera/text/tokenizer/tokenizer.h"

namespace tessera::retrieve {

/// A passage and its source, such as "notes/a.md:3-10".
struct Source {
  std::string where, text;
};

struct PromptWithPassages {
  std::string prompt;   // passages in the prompt
  size_t passages = 0;  // how many there was room for
  bool cut = false;     // the last of them is truncated
};

/// The question after as many passages, best first, as fit into `tokens` tokens of `tokenizer`. The
/// last passage may be truncated at a line end. Without passages the question alone.
PromptWithPassages augment_prompt(std::string_view question,
                                  const std::vector<Source>& found,
                                  int64_t tokens,
                                  const text::Tokenizer& tokenizer);

/// Passage numbers 1 .. n that an answer cites in brackets, as in "[2]" and "[1, 3]", each once, in
/// order.
std::vector<size_t> cited(std::string_view answer, size_t n);

}  // namespace tessera::retrieve
