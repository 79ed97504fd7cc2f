// Constraints on model calls over a row of a decoder: how its tokens may be split into calls.
// Torch-free.
//
// A row is a document and its state. Most models accept any split. Exceptions: parts without a
// state need whole documents; tokens with bidirectional attention (pattern prefix) must be in the
// row's first call; and where all rotary angles change with the length (dynamic RoPE scaling), a
// longer row is computed again from its beginning, in one call up to that length.
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

  /// "" if a call can continue a row's state; otherwise the reason why every call needs whole
  /// documents.
  const std::string& whole_reason() const { return whole_reason_; }
  bool goes_on() const { return whole_reason_.empty(); }
  /// True if the number of a document's prefix tokens matters (nn::Segment::prefix).
  bool reads_given() const;
  /// Min. tokens of a row's first call with `given` prefix tokens (0 = unknown); 0 = any.
  int64_t first_call(int64_t given) const;
  /// Max. tokens of a row whose first call has `length` tokens; nn::kAnglesStay = any.
  int64_t until(int64_t length) const;
  /// The same for any first call: a longer row begins with one call of at least that length.
  int64_t until_in_cuts() const { return until(1); }
  /// Max. tokens of a row that is split freely, by its angles and positions; 0 = any.
  int64_t longest_in_cuts() const;

 private:
  std::vector<const nn::PatternConfig*> patterns_;    // patterns that depend on the prefix
  std::vector<const nn::PositionConfig*> positions_;  // with length-dependent angles
  std::string whole_reason_;
  int64_t max_positions_ = 0;
};

}  // namespace tessera::model
