// vocab.json and merges.txt: byte-level BPE of GPT-2, RoBERTa and related models in folders without
// a tokenizer.json. The other components follow from `tokenizer_class` of tokenizer_config.json, as
// in transformers 5; without a class they are RoBERTa's if the vocabulary has <s>, <pad>, </s>,
// <unk> and <mask>, otherwise GPT-2's.
#pragma once

#include <string>
#include <string_view>

#include "tessera/text/tokenizer_files/configured_tokens.h"
#include "tessera/text/tokenizer/tokenizer.h"

namespace tessera::text {

/// The tokens and ids of a vocab.json. Throws Error(file) for anything else.
VocabularyPointer read_vocabulary(const spec::Json& vocab, const std::string& where);

/// `where` names vocab.json. Throws Error(file) for invalid files, Error(spec) for a class with
/// other pre-tokenization.
Tokenizer tokenizer_from_merges(std::string_view vocab,
                                std::string_view merges,
                                const std::string& where,
                                const TokenizerCompanions& companions = {});

}  // namespace tessera::text
