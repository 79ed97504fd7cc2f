// WordPiece: repeatedly takes the longest token that is a prefix of the rest of a word; tokens that
// continue a word have a prefix ("##ing"). A word with an unmatched rest is unknown as a whole
// (Devlin et al. 2018, arXiv:1810.04805; Wu et al. 2016, arXiv:1609.08144).
#pragma once

#include <cstdint>
#include <string>

#include "tessera/text/tokenizer/model.h"

namespace tessera::text {

struct WordPieceOptions {
  std::string unk_token = "[UNK]";
  std::string continuing_subword_prefix = "##";
  int64_t max_input_chars_per_word = 100;  // longer words are unknown; at most 1000
};

/// Throws Error(file) if the unknown token is not in the vocabulary, or a number is out of range.
ModelPointer make_word_piece_model(VocabularyPointer vocabulary,
                                   const WordPieceOptions& options,
                                   const std::string& where);

}  // namespace tessera::text
