// Byte-pair encoding: a piece starts as characters; the adjacent pair with the lowest rank in the
// list of merges becomes one token, repeatedly (Sennrich et al. 2016, arXiv:1508.07909). A heap
// over a linked list makes it O(n log n). Ties go to the leftmost pair.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/text/tokenizer/model.h"

namespace tessera::text {

struct BpeOptions {
  std::string unk_token;  // for characters outside the vocabulary; "" = they are dropped
  bool fuse_unk = false;  // a run of unknown characters is one unknown token
  bool byte_fallback =
      false;  // unknown characters become the tokens <0x00> to <0xFF> of their bytes
  bool ignore_merges = false;  // a piece that is a token is not split
};

/// `merges` by rank: the texts of the left and the right token.
/// Throws Error(file) when a merge or the unknown token names something outside the vocabulary.
ModelPointer make_bpe_model(VocabularyPointer vocabulary,
                            const std::vector<std::pair<std::string, std::string>>& merges,
                            const BpeOptions& options,
                            const std::string& where);

}  // namespace tessera::text
