// Byte tokenizer: ids 0 to 255 are bytes, special tokens follow.
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

/// Throws Error(usage) if bos or eos is not a special token, or one is repeated.
Tokenizer byte_tokenizer(const ByteTokenizerOptions& options = {});

}  // namespace tessera::text
