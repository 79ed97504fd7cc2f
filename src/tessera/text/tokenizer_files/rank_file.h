// Vocabularies of tiktoken, as Meta's Llama 3 has its tokenizer.model: one line a token, its bytes
// in base64 and its rank, which is its id. Byte-level BPE: the pair that makes the token of the
// lowest rank merges first. How texts are split, and which special tokens follow the last rank, no
// such file says: "ranks" of gguf_tokenizers.json does, by the number of tokens. Source:
// https://github.com/openai/tiktoken, tiktoken/load.py.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "tessera/text/tokenizer_files/gguf_tokenizer.h"

namespace tessera::text {

/// Whether a text begins as such a file does: base64, a space, a number, the end of a line.
bool is_rank_file(std::string_view content);

/// As GGUF metadata have it. Throws Error(file) for a line that is malformed, a rank out of order,
/// a token that stands twice, and for a number of tokens that is not known.
GgufTokenizerData read_rank_file(std::string_view content, const std::string& where);

}  // namespace tessera::text
