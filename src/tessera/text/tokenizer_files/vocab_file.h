// Vocabulary files: the vocab.txt of BERT and related models, one token a line, its id is the line
// number. The other components are BERT's: normalizer, pre-tokenizer, WordPiece, and special tokens
// around a text.
#pragma once

#include <string>
#include <string_view>

#include "tessera/text/tokenizer/tokenizer.h"
#include "tessera/text/tokenizer_files/configured_tokens.h"

namespace tessera::text {

/// Uses `do_lower_case` (default true), `strip_accents`, `tokenize_chinese_chars`, the special
/// tokens (default [CLS], [SEP], [UNK], [PAD], [MASK]) and `added_tokens_decoder` of the
/// configuration; the other two files only without the last, because they are its predecessors. Ids
/// are those of the reference: the line of a token, otherwise the next one after the lines. Throws
/// Error(file) for bytes that are not UTF-8, a repeated token, a missing special token, an added
/// token whose given id differs, and unsupported keys that change ids (`do_basic_tokenize`,
/// `never_split`, the `tokenizer_class` of another type, ...).
Tokenizer tokenizer_from_vocab(std::string_view vocab,
                               const std::string& where,
                               const TokenizerCompanions& companions = {});

}  // namespace tessera::text
