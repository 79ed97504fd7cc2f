// Prompts that a model reads as they are typed, without a chat template: special tokens that they
// spell become those tokens, as in transformers, llama.cpp and vLLM. Texts of others (messages of a
// chat, passages, what is embedded) are no raw prompts: Tokenizer::encode() leaves theirs as text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tessera/text/tokenizer/tokenizer.h"

namespace tessera::text {

struct RawPrompt {
  std::vector<int32_t> ids;
  /// For the user, where the prompt is likely not what was meant: it begins with the begin-of-text
  /// token that the tokenizer puts in front of it as well. The prompt has both. "" = nothing.
  std::string warning;
};

/// Errors are those of Tokenizer::encode().
RawPrompt encode_raw_prompt(const Tokenizer& tokenizer,
                            std::string_view text,
                            const EncodeOptions& options = {.parse_special = true});

}  // namespace tessera::text
