// Hugging Face tokenizer.json: byte-level and SentencePiece-style BPE, WordPiece.
//
// Every component and every key is known and obeyed, or the file is refused with an error that
// names it; what is ignored by design is said in tokenizer.h. Source: the serialisation of the
// `tokenizers` library, https://github.com/huggingface/tokenizers.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "tessera/text/tokenizer.h"

namespace tessera::text {

/// `config` is the text of tokenizer_config.json, from which bos, eos, unk, pad and the chat
/// template are taken; "" when there is none.
Tokenizer tokenizer_from_json(std::string_view json,
                              const std::string& where,
                              std::string_view config = {});

}  // namespace tessera::text
