// Vocabulary files: the vocab.txt of BERT and its relatives, one token a line, its id the number of
// the line. What surrounds the vocabulary is BERT's: normalizer, pre-tokenizer, WordPiece, and the
// tokens that begin and end a text.
#pragma once

#include <string>
#include <string_view>

#include "tessera/text/tokenizer/tokenizer.h"
#include "tessera/text/tokenizer_files/configured_tokens.h"

namespace tessera::text {

/// Of the configuration `do_lower_case` (true when absent), `strip_accents`,
/// `tokenize_chinese_chars`, the names of the special tokens ([CLS], [SEP], [UNK], [PAD], [MASK]
/// when absent) and `added_tokens_decoder` are read; the other two files only without the last, as
/// they are its elder forms. Ids are those that the reference gives: of a token's line, else the
/// next one after the lines. Throws Error(file) on bytes that are not UTF-8, a token that stands
/// there twice, a special token that is missing, an added token whose stated id is another one, and
/// keys that would change ids and are not obeyed (`do_basic_tokenize`, `never_split`, the
/// `tokenizer_class` of another kind, ...).
Tokenizer tokenizer_from_vocab(std::string_view vocab,
                               const std::string& where,
                               const TokenizerCompanions& companions = {});

}  // namespace tessera::text
