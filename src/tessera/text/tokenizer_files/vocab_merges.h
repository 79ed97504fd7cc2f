// vocab.json and merges.txt: byte-level BPE as GPT-2, RoBERTa and their relatives keep it in
// folders without a tokenizer.json. What surrounds it follows from `tokenizer_class` of
// tokenizer_config.json, as transformers 5 builds it; without a class it is RoBERTa's where the
// vocabulary holds <s>, <pad>, </s>, <unk> and <mask>, else GPT-2's.
#pragma once

#include <string>
#include <string_view>

#include "tessera/text/tokenizer_files/configured_tokens.h"
#include "tessera/text/tokenizer/tokenizer.h"

namespace tessera::text {

/// `where` names vocab.json. Throws Error(file) for files that are no such ones, Error(spec) for a
/// class that cuts text in another way.
Tokenizer tokenizer_from_merges(std::string_view vocab,
                                std::string_view merges,
                                const std::string& where,
                                const TokenizerCompanions& companions = {});

}  // namespace tessera::text
