// Tokenizers of single characters that come as Python code next to a tokenizer_config.json alone:
// of a class that vocabularies.json knows by its characters (HyenaDNATokenizer), or with the
// characters in the configuration ("char_ords", as the CharacterTokenizer of HyenaDNA's first code
// saves itself).
//
// Ids 0 to 6 are [CLS], [SEP], [BOS], [MASK], [PAD], [RESERVED] and [UNK]; the characters follow.
// [SEP] ends a text.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "tessera/text/tokenizer/tokenizer.h"
#include "tessera/text/tokenizer_files/configured_tokens.h"

namespace tessera::text {

/// Whether a tokenizer_config.json describes such a tokenizer. Throws Error(file) for what is no
/// JSON object.
bool is_character_config(std::string_view config, const std::string& where);

/// Throws Error(file) for characters that are not single or not unique.
Tokenizer tokenizer_from_characters(std::string_view config,
                                    const std::string& where,
                                    const TokenizerCompanions& companions = {});

}  // namespace tessera::text
