// Raw prompts without a chat template: special tokens in them are parsed, as in transformers,
// llama.cpp and vLLM. Untrusted text (chat messages, passages, inputs of embeddings) is not a raw
// prompt: Tokenizer::encode() keeps its special tokens as text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tessera/text/tokenizer/tokenizer.h"

namespace tessera::text {

struct RawPrompt {
  std::vector<int32_t> ids;
  /// A warning for the user if the prompt begins with the begin-of-text token that the tokenizer
  /// adds as well: the prompt has both. "" = none.
  std::string warning;
};

/// By the tokenizer of sources where a model has two vocabularies (Tokenizer::of_source). Errors
/// are those of Tokenizer::encode().
RawPrompt encode_raw_prompt(const Tokenizer& tokenizer,
                            std::string_view text,
                            const EncodeOptions& options = {.parse_special = true});

}  // namespace tessera::text
