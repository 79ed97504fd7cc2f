// Longest-match tokenization: repeatedly takes the longest token that is a prefix of the rest.
// Tokens are byte strings and need not end at characters. RWKV's World tokenizer
// (https://github.com/BlinkDL/ChatRWKV, rwkv_vocab_v20230424).
#pragma once

#include <string>

#include "tessera/text/tokenizer/model.h"

namespace tessera::text {

/// `unk` replaces each byte that begins no token. Throws Error(file) if a single byte is no token
/// and there is no `unk`.
ModelPointer make_longest_match_model(VocabularyPointer vocabulary,
                                      int32_t unk,
                                      const std::string& where);

}  // namespace tessera::text
