// SentencePiece BPE: a piece starts as characters; of all adjacent pairs whose concatenation is a
// token, the one with the highest score is merged, repeatedly. Ties go to the leftmost pair (Kudo
// and Richardson 2018, arXiv:1808.06226).
#pragma once

#include <string>
#include <vector>

#include "tessera/text/tokenizer/model.h"

namespace tessera::text {

struct ScoreOptions {
  /// By id: text may produce this token. False for control, byte and unknown tokens, so that text
  /// cannot form them. Empty: all.
  std::vector<bool> from_text;
  /// Characters outside the vocabulary may be part of a longer token.
  bool join_unknown = true;
  int32_t unk = kNoToken;     // for characters without byte tokens
  bool fuse_unknown = false;  // adjacent unknown characters are one unknown token
};

/// `scores` by id. Throws Error(file) if their number differs from that of the tokens, or if there
/// are neither all 256 byte tokens nor an unknown token.
ModelPointer make_score_model(VocabularyPointer vocabulary,
                              std::vector<float> scores,
                              ScoreOptions options,
                              const std::string& where);

}  // namespace tessera::text
