// Unigram language models of text: of all ways to write a text as tokens the one whose
// log-probabilities have the greatest sum (Kudo 2018, arXiv:1804.10959; Kudo and Richardson 2018,
// arXiv:1808.06226), found by Viterbi's algorithm over a trie of the tokens.
//
// A character that no token is costs 10 more than the least probable token. Neighbours of the kind
// become one unknown token, or their bytes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tessera/text/tokenizer/model.h"

namespace tessera::text {

struct UnigramOptions {
  int32_t unk = kNoToken;       // without one, a text with unknown characters is refused
  bool byte_fallback = false;   // <0x00> to <0xFF> instead of it, where all that are needed exist
  std::vector<bool> from_text;  // by id: texts become this token; empty = all do
  std::optional<double> unk_score;  // of one character; by default the least score less 10
};

/// Time and memory are linear in the text but for the length of the longest token. Of equal sums
/// that one wins whose last token is longest, as in the `tokenizers` library.
/// Throws Error(file) when there is not one finite score per id, or `unk` is no token.
ModelPointer make_unigram_model(VocabularyPointer vocabulary,
                                std::vector<double> scores,
                                UnigramOptions options,
                                const std::string& where);

}  // namespace tessera::text
