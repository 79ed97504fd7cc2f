// A tokenizer of GGUF metadata in the words of Hugging Face: tokenizer.json, as the `tokenizers`
// library reads it, and tokenizer_config.json beside it.
#pragma once

#include <string>

#include "tessera/text/tokenizer_files/gguf_tokenizer.h"

namespace tessera::text {

struct TokenizerJson {
  std::string tokenizer, config;  // the two files
};

/// Byte-level BPE, Unigram and WordPiece as they are; tokens with scores as BPE whose merges are
/// all pairs of tokens that make a token, those of higher score first. The latter may part from the
/// scores where they tie: compare what both make of a text. Throws Error(file) for other kinds, and
/// as tokenizer_from_gguf().
TokenizerJson tokenizer_json_of(GgufTokenizerData data, const std::string& where);

}  // namespace tessera::text
