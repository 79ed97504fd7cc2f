// Hugging Face tokenizer.json: byte-level and SentencePiece-style BPE, WordPiece.
//
// Every component and every key must be known and is applied; otherwise the file is rejected with
// an error that names it. Keys that are ignored by design are listed in tokenizer.h. Source: the
// serialization of the `tokenizers` library, https://github.com/huggingface/tokenizers.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "tessera/text/tokenizer/tokenizer.h"
#include "tessera/text/tokenizer_files/configured_tokens.h"

namespace tessera::text {

/// The companion files define additional tokens and flags (configured_tokens.h), bos, eos, unk and
/// pad, the chat template, `add_prefix_space` and `split_special_tokens`.
Tokenizer tokenizer_from_json(std::string_view json,
                              const std::string& where,
                              const TokenizerCompanions& companions = {});

}  // namespace tessera::text
