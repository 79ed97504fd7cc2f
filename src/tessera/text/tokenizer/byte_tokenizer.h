// Bytes as tokens: ids 0 to 255 are the bytes of the text, whatever they are; special tokens
// follow.
#pragma once

#include <string>
#include <vector>

#include "tessera/text/tokenizer/tokenizer.h"

namespace tessera::text {

struct ByteTokenizerOptions {
  std::vector<std::string> specials;  // ids from 256 on
  std::string bos;                    // "" or one of the specials; put before every text
  std::string eos;                    // "" or one of the specials
};

/// Throws Error(usage) when bos or eos is not among the specials, or one stands there twice.
Tokenizer byte_tokenizer(const ByteTokenizerOptions& options = {});

}  // namespace tessera::text
