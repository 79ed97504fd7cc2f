// Trains a byte-level BPE vocabulary: the most frequent pair of neighbours becomes a token,
// repeatedly. Sennrich et al. 2016, arXiv:1508.07909, sec. 3.2, over the bytes of GPT-2's words
// (Radford et al. 2019, sec. 2.2): no text is unknown, and decoding reproduces the input.
//
// Ties go to the pair of earlier tokens, as in the `tokenizers` library, whose merges these are,
// except that no pair becomes a special token.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tessera/base/cancel.h"
#include "tessera/spec/json.h"
#include "tessera/text/tokenizer/pre_tokenizer.h"

namespace tessera::text {

/// Word counts of texts; no token crosses words.
class WordCounts {
 public:
  WordCounts();
  /// `text` must be valid UTF-8.
  void add(std::string_view text);
  /// By word in the byte-level alphabet.
  const std::unordered_map<std::string, int64_t>& words() const { return words_; }

 private:
  PreTokenizerPointer pre_tokenizer_;
  std::unordered_map<std::string, int64_t> words_;
};

struct LearnBpeOptions {
  int64_t vocabulary = 8192;              // max. tokens, special tokens and 256 bytes included
  int64_t least_count = 2;                // min. count of a pair that becomes a token
  std::vector<std::string> special = {};  // first ids, in this order
  std::function<void(int64_t done, int64_t total)> progress = {};
};

/// Returns the tokenizer.json. Throws Error(usage) if the vocabulary has no room for the bytes, or
/// a special token is empty or repeated; Error(cancelled) on request.
spec::Json train_bpe(const WordCounts& counts,
                     const LearnBpeOptions& options,
                     const CancelToken* cancel = nullptr);

}  // namespace tessera::text
