// Hugging Face tokenizer.json: byte-level and SentencePiece-style BPE, WordPiece.
//
// Every component and every key is known and obeyed, or the file is refused with an error that
// names it; what is ignored by design is said in tokenizer.h. Source: the serialisation of the
// `tokenizers` library, https://github.com/huggingface/tokenizers.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "tessera/text/tokenizer/tokenizer.h"
#include "tessera/text/tokenizer_files/configured_tokens.h"

namespace tessera::text {

/// The companions say which further tokens there are and which flags tokens have
/// (configured_tokens.h), bos, eos, unk and pad, the chat template, `add_prefix_space` and
/// `split_special_tokens`.
Tokenizer tokenizer_from_json(std::string_view json,
                              const std::string& where,
                              const TokenizerCompanions& companions = {});

}  // namespace tessera::text
