// Converts the tokenizer of GGUF metadata to Hugging Face files: tokenizer.json for the
// `tokenizers` library, and tokenizer_config.json.
#pragma once

#include <string>

#include "tessera/text/tokenizer_files/gguf_tokenizer.h"

namespace tessera::text {

struct TokenizerJson {
  std::string tokenizer, config;  // the two files
};

/// Byte-level BPE, Unigram and WordPiece are converted unchanged; SentencePiece BPE becomes BPE
/// with all pairs of tokens that form a token as merges, higher scores first. That may differ where
/// scores tie: compare both on a text. Throws Error(file) for other types, and as
/// tokenizer_from_gguf().
TokenizerJson tokenizer_json_of(GgufTokenizerData data, const std::string& where);

}  // namespace tessera::text
