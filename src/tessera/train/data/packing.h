// Which tokens a forward pass sees, as a pure function of a seed and a number. Torch-free.
//
// The train split is cut into windows of `length` inputs, each predicting the token after it.
// Sample k is window permutation(k mod W) of epoch k / W; every epoch shuffles anew and shifts the
// cuts by a random phase, so that no window border is special. Samples depend on (seed, k) alone: a
// run is resumed by its counter, whatever happened before.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "tessera/base/rng.h"
#include "tessera/nn/token_order.h"
#include "tessera/train/data/token_split.h"

namespace tessera::train {

struct Window {
  int64_t begin = 0;   // first input token in its split
  int64_t length = 0;  // inputs; the last one predicts token begin + length
};

/// The image of i under a permutation of 0 .. n-1 chosen by the key, in constant memory: a Feistel
/// network on the next power of four, walked until it lands inside.
int64_t permuted(int64_t i, int64_t n, const RandomKey& key);

class SampleOrder {
 public:
  /// `tokens` at least 2. Fewer than `length` + 1 give one shorter window.
  SampleOrder(int64_t tokens, int64_t length, uint64_t seed);
  Window at(int64_t sample) const;
  int64_t per_epoch() const { return windows_; }

 private:
  int64_t length_, windows_, phases_;
  RandomKey key_;
};

/// Windows in order without gaps, the last one shorter: every token but the first is predicted
/// once.
std::vector<Window> windows_in_order(int64_t tokens, int64_t length);

/// Part of one document within a window: it starts at position 0 and sees nothing of its
/// neighbours.
struct PackedDocument {
  int64_t row = 0, begin = 0, length = 0;
  int64_t prefix = 0;  // the first tokens, which were given (nn::Segment::prefix); 0 = not said
};

/// Windows for rows that go on where they were: the split is cut into `streams` runs of consecutive
/// windows. Sample k is the next window of stream k mod streams; after the last ones a new epoch
/// begins, with all cuts shifted by a random phase.
class StreamOrder {
 public:
  /// Throws Error(input) when the tokens do not give every stream a window.
  StreamOrder(int64_t tokens, int64_t length, int64_t streams, uint64_t seed);
  struct Next {
    Window window;
    bool first = false;  // of its stream in this epoch: nothing goes before it
  };
  Next at(int64_t sample) const;
  int64_t per_epoch() const { return windows_ * streams_; }

 private:
  int64_t length_, streams_, windows_, phases_;
  RandomKey key_;
};

struct PackedBatch {
  std::vector<int64_t> ids, targets;  // target -1: none, the next token is another document's
  std::vector<PackedDocument> pieces;
  std::vector<bool> goes_on;  // per window: whether its last document does not end with it
  std::vector<std::vector<int64_t>> sources;  // what an encoder reads beside each piece
  std::vector<int64_t> kinds;      // of each piece, which of several objectives asks it; else empty
  std::vector<int64_t> items;      // numbers of what it was made of, as its objective reads them
  std::vector<std::string> names;  // of each piece, what it is to its row ("chosen"); else empty
  /// Of each piece, where it is a text in an order with queries behind it (nn::Segment::order);
  /// else empty.
  std::vector<std::shared_ptr<const nn::TokenOrder>> orders;
  std::vector<int64_t> types;  // of each token, where there are types; else empty
  /// Of each piece what is to be said of it, else empty: the number of its class, of several
  /// classes a 1 or 0 each, a score, or the first and the last token of an answer.
  std::vector<std::vector<double>> labels;
  int64_t n_targets = 0;
  int64_t first_sample = 0;  // number of row 0 of its pieces; the rows after it follow on
};

PackedBatch pack(const TokenSplit& split, std::span<const Window> windows);

/// Pairs of a split whose documents alternate, a source and its text. Sample k is pair
/// permutation(k mod P) of epoch k / P.
class PairOrder {
 public:
  PairOrder(int64_t pairs, uint64_t seed) : pairs_(pairs), key_(RandomKey(seed).fold("data")) {}
  int64_t at(int64_t sample) const;

 private:
  int64_t pairs_;
  RandomKey key_;
};

/// Every text token is predicted from those before it, the first from `start`. Sources and texts
/// longer than `length` are cut.
PackedBatch pack_pairs(const TokenSplit& split,
                       std::span<const int64_t> pairs,
                       int64_t start,
                       int64_t length);

/// Every pair as one document of at most `length` inputs, the source its prefix, without the
/// `separator` behind that: a prompt has none either. Text tokens alone are targets, the first
/// predicted from the end of the source. What is too long loses the end of its text but for one
/// token, then the end of its source.
PackedBatch pack_prefixed(const TokenSplit& split,
                          std::span<const int64_t> pairs,
                          std::optional<int32_t> separator,
                          int64_t length);

/// Takes away the targets that the first `prefix` tokens of every piece, which see each other, see.
void hide_seen(PackedBatch& batch, int64_t prefix);

}  // namespace tessera::train
