// Token score files: the tokenizer.bin of llama2.c (https://github.com/karpathy/llama2.c).
//
//   int32 longest token; then for each token: float32 score, int32 length, bytes   (little endian)
//
// Token 0 is unknown, 1 begins a text, 2 ends it, 3 to 258 are the bytes "<0x00>" to "<0xFF>".
// Encoding adds a space before the text and merges by highest score; decoding drops the space after
// token 1.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "tessera/text/tokenizer/tokenizer.h"

namespace tessera::text {

/// `vocab_size`: required number of tokens; 0 = any. Throws Error(file) for a truncated file, extra
/// bytes, or missing tokens 0 to 258.
Tokenizer tokenizer_from_scores(std::span<const std::byte> file,
                                const std::string& where,
                                int32_t vocab_size = 0);

}  // namespace tessera::text
