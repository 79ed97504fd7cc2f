// Longest match: the longest token that begins a text, then again for what is left of it; tokens
// are strings of bytes, and need not end where characters do. RWKV's World tokenizer
// (https://github.com/BlinkDL/ChatRWKV, rwkv_vocab_v20230424).
#pragma once

#include <string>

#include "tessera/text/tokenizer/model.h"

namespace tessera::text {

/// `unk` stands for each byte that begins no token. Throws Error(file) when a byte alone is none
/// and there is no `unk`.
ModelPointer make_longest_match_model(VocabularyPointer vocabulary,
                                      int32_t unk,
                                      const std::string& where);

}  // namespace tessera::text
