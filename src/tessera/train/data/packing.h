// Packs tokens into samples, as a pure function of a seed and a sample number. Torch-free.
//
// The training split is cut into windows of `length` inputs, each predicting the token after it.
// Sample k is window permutation(k mod W) of epoch k / W; every epoch shuffles again and shifts the
// cuts by a random phase, so that no window border is special. Samples depend on (seed, k) only: a
// run is resumed from its counter.
// run is resumed by its counter, whatever happened before.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "tessera/base/rng.h"
#include "tessera/nn/token_order.h"
#include "tessera/train/data/feature_input.h"
#include "tessera/train/data/token_split.h"

namespace tessera::train {

struct Window {
  int64_t begin = 0;   // first input token in its split
  int64_t length = 0;  // inputs; the last one predicts token begin + length
};

/// The image of i under a permutation of 0 .. n-1 chosen by the key, in constant memory: a Feistel
/// network on the next power of four, iterated until the result is below n.
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

/// Windows in order without gaps, the last one shorter: every token except the first is a target
/// once.
std::vector<Window> windows_in_order(int64_t tokens, int64_t length);

/// Part of one document within a window: it starts at position 0 and does not attend to other
/// documents.
struct PackedDocument {
  int64_t row = 0, begin = 0, length = 0;
  int64_t prefix = 0;  // first tokens with bidirectional attention (nn::Segment::prefix); 0 = none
};

/// Windows for rows that continue (TBPTT): the split is cut into `streams` runs of consecutive
/// windows. Sample k is the next window of stream k mod streams; after the last windows a new epoch
/// begins, with all cuts shifted by a random phase.
class StreamOrder {
 public:
  /// Throws Error(input) if the tokens are too few for a window per stream.
  StreamOrder(int64_t tokens, int64_t length, int64_t streams, uint64_t seed);
  struct Next {
    Window window;
    bool first = false;  // of its stream in this epoch
  };
  Next at(int64_t sample) const;
  int64_t per_epoch() const { return windows_ * streams_; }

 private:
  int64_t length_, streams_, windows_, phases_;
  RandomKey key_;
};

struct PackedBatch {
  std::vector<int64_t> ids, targets;  // target -1: none, the next token belongs to another document
  std::vector<PackedDocument> pieces;
  std::vector<bool> goes_on;  // per window: whether its last document continues in the next one
  std::vector<std::vector<int64_t>> sources;  // encoder input of each document
  std::vector<int64_t> kinds;      // of each document, its objective in a mixture; else empty
  std::vector<int64_t> items;      // of each document, example numbers for the objective
  std::vector<std::string> names;  // of each document, its role in its row ("chosen"); else empty
  /// Of each document, its token order if it has queries (nn::Segment::order); else empty.
  std::vector<std::shared_ptr<const nn::TokenOrder>> orders;
  std::vector<int64_t> types;  // of each token, its type id; else empty
  /// Of each document its labels, else empty: the class number, a 1 or 0 for each of several
  /// classes, a score, or the first and the last token of an answer.
  std::vector<std::vector<double>> labels;
  std::vector<FeatureInput> features;  // of each document, if the model reads no ids; else empty
  int64_t n_targets = 0;
  int64_t first_sample = 0;  // sample number of row 0; the other rows follow
};

PackedBatch pack(const TokenSplit& split, std::span<const Window> windows);

/// Pairs of a split whose documents alternate between source and target. Sample k is pair
/// permutation(k mod P) of epoch k / P.
class PairOrder {
 public:
  PairOrder(int64_t pairs, uint64_t seed) : pairs_(pairs), key_(RandomKey(seed).fold("data")) {}
  int64_t at(int64_t sample) const;

 private:
  int64_t pairs_;
  RandomKey key_;
};

/// Encoder-decoder: every target token is predicted from those before it, the first from `start`.
/// Sources and targets are truncated to `length`.
PackedBatch pack_pairs(const TokenSplit& split,
                       std::span<const int64_t> pairs,
                       int64_t start,
                       int64_t length);

/// Decoder-only: every pair is one document of at most `length` inputs, with the source as prefix
/// and without the `separator` after it, as prompts have none. Only the target's tokens are
/// predicted, the first from the end of the source. What is too long loses the end of its target
/// except one token, then the end of its source.
PackedBatch pack_prefixed(const TokenSplit& split,
                          std::span<const int64_t> pairs,
                          std::optional<int32_t> separator,
                          int64_t length);

/// Removes targets within the first `prefix` tokens of every document, which attend to each other.
void hide_seen(PackedBatch& batch, int64_t prefix);

}  // namespace tessera::train
