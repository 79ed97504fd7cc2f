// Vocabulary files of tiktoken, such as tokenizer.model of Meta's Llama 3: a token a line, its
// bytes in base64 and its rank, which is its id. Byte-level BPE: the pair that forms the token of
// the lowest rank merges first. Pre-tokenization and special tokens are not in the file: "ranks" of
// gguf_tokenizers.json has them, by number of tokens. Source: https://github.com/openai/tiktoken,
// tiktoken/load.py.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "tessera/text/tokenizer_files/gguf_tokenizer.h"

namespace tessera::text {

/// True if a text begins as such a file: base64, a space, a number, a line end.
bool is_rank_file(std::string_view content);

/// As GGUF metadata. Throws Error(file) for a malformed line, a rank out of order, a repeated
/// token, and an unknown number of tokens.
GgufTokenizerData read_rank_file(std::string_view content, const std::string& where);

}  // namespace tessera::text
