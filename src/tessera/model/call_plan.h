// What may be one call over a row of a decoder, where it must end, and what can go on from it:
// asked by whoever makes calls. Torch-free.
//
// A row is a document and what a state holds of it. Most models take its tokens in any cuts. Where
// not: parts without a state take whole documents; tokens that see each other (pattern prefix) come
// in the row's first call; and where all angles change with the length (dynamic scalings of rope),
// a row that becomes longer is computed anew, from its beginning to there in one call.
#pragma once

#include "tessera/model/model_spec.h"

namespace tessera::nn {
struct PatternConfig;
struct PositionConfig;
}  // namespace tessera::nn

namespace tessera::model {

class CallPlan {
 public:
  /// `spec` must outlive it.
  explicit CallPlan(const ModelSpec& spec);

  /// "" where a call can go on from what a row holds; else why every call brings whole documents.
  const std::string& whole_reason() const { return whole_reason_; }
  bool goes_on() const { return whole_reason_.empty(); }
  /// Whether it matters which of a document's first tokens are given (nn::Segment::prefix).
  bool reads_given() const;
  /// Tokens that a row's first call brings at least where its first `given` tokens are given
  /// (0 = not said); 0 = any.
  int64_t first_call(int64_t given) const;
  /// Most tokens that a row can come to whose first call brought `length` of them;
  /// nn::kAnglesStay = any.
  int64_t until(int64_t length) const;
  /// The same whatever the first call brings: a longer row begins with one call to there at least.
  int64_t until_in_cuts() const { return until(1); }
  /// Most tokens of a row that goes on in any cuts: by its angles and its positions; 0 = any.
  int64_t longest_in_cuts() const;

 private:
  std::vector<const nn::PatternConfig*> patterns_;    // of a decoder that read what is given
  std::vector<const nn::PositionConfig*> positions_;  // whose angles change
  std::string whole_reason_;
  int64_t max_positions_ = 0;
};

}  // namespace tessera::model
