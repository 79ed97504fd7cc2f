// Score merging, SentencePiece's BPE: a piece starts as characters; of all adjacent pairs whose
// joined text is a token, the one with the highest score becomes it, again and again. Ties go to
// the leftmost pair (Kudo and Richardson 2018, arXiv:1808.06226).
#pragma once

#include <string>
#include <vector>

#include "tessera/text/tokenizer/model.h"

namespace tessera::text {

struct ScoreOptions {
  /// Tokens by id that may arise from text; control, byte and unknown tokens may not, so that no
  /// text can spell them. Empty: all.
  std::vector<bool> from_text;
  /// Characters outside the vocabulary may still be part of a longer token.
  bool join_unknown = true;
  int32_t unk = kNoToken;     // for characters without byte tokens
  bool fuse_unknown = false;  // neighbours of these are one unknown token
};

/// `scores` by id. Throws Error(file) when their number is not that of the tokens, or when neither
/// all 256 byte tokens nor an unknown token exist.
ModelPointer make_score_model(VocabularyPointer vocabulary,
                              std::vector<float> scores,
                              ScoreOptions options,
                              const std::string& where);

}  // namespace tessera::text
