// Vocabulary files: the vocab.txt of BERT and its relatives, one token a line, its id the number of
// the line. What surrounds the vocabulary is BERT's: normalizer, pre-tokenizer, WordPiece, and the
// tokens that begin and end a text.
#pragma once

#include <string>
#include <string_view>

#include "tessera/text/tokenizer.h"

namespace tessera::text {

/// `config` is the text of tokenizer_config.json, "" when there is none; of it `do_lower_case`
/// (true when absent), `strip_accents`, `tokenize_chinese_chars` and the names of the special
/// tokens ([CLS], [SEP], [UNK], [PAD], [MASK] when absent) are read. Throws Error(file) on bytes
/// that are not UTF-8, a token that stands there twice, or a special token that is missing.
Tokenizer tokenizer_from_vocab(std::string_view vocab,
                               const std::string& where,
                               std::string_view config = {});

}  // namespace tessera::text
