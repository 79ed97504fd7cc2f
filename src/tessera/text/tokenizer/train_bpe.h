// A byte-level BPE vocabulary from texts: the pair of neighbours that stands in them most often
// becomes a token, and again. Sennrich et al. 2016, arXiv:1508.07909, sec. 3.2, over the bytes of
// GPT-2's words (Radford et al. 2019, sec. 2.2): nothing is unknown, and what is decoded is what
// was encoded.
//
// Of pairs that stand equally often the one of earlier tokens comes first, as in the `tokenizers`
// library, whose merges these are, but that no pair becomes a special token.
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

/// How often each word stands in texts; what stands across words is never one token.
class WordCounts {
 public:
  WordCounts();
  /// Valid UTF-8.
  void add(std::string_view text);
  /// By the word in the byte-level alphabet.
  const std::unordered_map<std::string, int64_t>& words() const { return words_; }

 private:
  PreTokenizerPointer pre_tokenizer_;
  std::unordered_map<std::string, int64_t> words_;
};

struct LearnBpeOptions {
  int64_t vocabulary = 8192;  // tokens at most, special ones and the 256 bytes among them
  int64_t least_count = 2;    // a pair that stands less often becomes no token
  std::vector<std::string> special = {};  // the first ids, in this order
  std::function<void(int64_t done, int64_t total)> progress = {};
};

/// The tokenizer.json. Throws Error(usage) where the vocabulary has no room for the bytes, or a
/// special token is empty or stands there twice; Error(cancelled) on request.
spec::Json train_bpe(const WordCounts& counts,
                     const LearnBpeOptions& options,
                     const CancelToken* cancel = nullptr);

}  // namespace tessera::text
