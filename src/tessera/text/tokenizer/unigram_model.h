// Unigram language model tokenization: of all segmentations of a text into tokens, the one with the
// greatest sum of log-probabilities (Kudo 2018, arXiv:1804.10959; Kudo and Richardson 2018,
// arXiv:1808.06226), found by Viterbi's algorithm over a trie of the tokens.
//
// An unknown character costs 10 more than the least probable token. Adjacent unknown characters
// become one unknown token, or their bytes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tessera/text/tokenizer/model.h"

namespace tessera::text {

struct UnigramOptions {
  int32_t unk = kNoToken;           // without one, text with unknown characters is an error
  bool byte_fallback = false;       // <0x00> to <0xFF> instead of it, if all required ones exist
  std::vector<bool> from_text;      // by id: text may produce this token; empty = all
  std::optional<double> unk_score;  // of one character; default: the minimum score minus 10
};

/// Time and memory are linear in the text, times the length of the longest token. Ties go to the
/// segmentation with the longest last token, as in the `tokenizers` library. Throws Error(file)
/// unless there is one finite score per id, or if `unk` is no token.
ModelPointer make_unigram_model(VocabularyPointer vocabulary,
                                std::vector<double> scores,
                                UnigramOptions options,
                                const std::string& where);

}  // namespace tessera::text
