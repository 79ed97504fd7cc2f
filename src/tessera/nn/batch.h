// Which tokens a call holds. Activations are ragged: x_ND, the tokens of all segments one after
// another. A segment is a run of tokens of one document; packing, unequal prompts, and prefill
// mixed with decoding are all just lists of segments. Padding exists at the edges only
// (model/padding.h).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tessera/base/rng.h"
#include "tessera/nn/token_order.h"
#include "tessera/ops/tensor.h"

namespace tessera::nn {

struct Segment {
  int64_t row = 0;     // which sequence: the state's row, where there is a state
  int64_t begin = 0;   // first token in x_ND
  int64_t length = 0;  // tokens
  int64_t start = 0;   // position of the first token in its document: what the state already holds
  int64_t prefix = 0;  // first tokens of the document that were given (pattern prefix)
  bool pending = false;  // the state leaves its tokens uncommitted (drafts, State::commit)
  /// Ascending positions of its tokens in their row, if a branch has only some of them; else
  /// null: consecutive from `start`. If set, `start` counts the tokens that the branch has seen.
  std::shared_ptr<const std::vector<int64_t>> places = nullptr;
  /// Set if its tokens are a text with a permutation order followed by queries (only attention
  /// reads it); else null.
  std::shared_ptr<const TokenOrder> order = nullptr;
  /// Whose random numbers it draws in training: the number of a sample, and where in the sample the
  /// segment begins. They do not turn on what else a call holds.
  int64_t sample = 0, offset = 0;

  /// Tokens of its document, this call's included.
  int64_t document() const { return start + (order ? order->text() : length); }
  /// The random numbers of its tokens from the one at `at` on, at a site that has `key`.
  RandomKey stream(const RandomKey& key, int64_t at = 0) const {
    return key.fold(static_cast<uint64_t>(sample)).fold(static_cast<uint64_t>(offset + at));
  }
};

struct Batch {
  std::vector<Segment> segments;
  Tensor ids_N;        // int64
  Tensor before_NM;    // int64: the ids before each in its document, the nearest first, -1 where it
                       // begins; as many as parts read (spec::Config::ids_before), else undefined
  Tensor types_N;      // int64 token types; may be undefined
  Tensor positions_N;  // int64; from the segments unless given
  Tensor axes_3N;      // int64 positions in time, height and width (m_rope); may be undefined
  Tensor global_N;     // bool: global tokens in addition to the pattern's own; may be undefined
  /// One for each segment where the embedding reads features instead of ids; else empty.
  std::vector<Tensor> features = {};

  int64_t n_tokens() const {
    return segments.empty() ? 0 : segments.back().begin + segments.back().length;
  }
  /// The common length when all segments have one and start at 0, else 0.
  int64_t equal_length() const;
  /// Whether some of its texts are given in an order.
  bool in_order() const;
  /// Longest document so far, past included.
  int64_t longest() const;

  /// Rows of token ids, each a sample of its own; `starts` are the lengths their state already
  /// holds (empty = 0).
  static Batch of(const std::vector<std::vector<int64_t>>& rows,
                  const std::vector<int64_t>& starts = {});
  /// B rows of T tokens, ids_BT int64.
  static Batch of(const Tensor& ids_BT);
  /// Fills positions_N from the segments.
  void number();
};

}  // namespace tessera::nn
