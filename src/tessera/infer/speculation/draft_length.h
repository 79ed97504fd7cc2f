// Adaptive number of draft tokens. A step with n draft tokens yields (1 - a^(n+1)) / (1 - a) tokens
// on average, where a is the probability that a draft token is accepted if those before it are. It
// costs the time of drafting n tokens and of verifying 1 + n tokens. Both are measured during
// decoding; the controller takes the n with the most tokens per second, 0 where drafting does not
// pay. Leviathan et al. 2022, arXiv:2211.17192, sec. 3.3, theorem 3.8, with measured instead of
// assumed costs.
//
// The generated text does not depend on n.
#pragma once

#include <cstdint>

namespace tessera::infer {

/// Seconds as a linear function of a size: of a model call by its tokens, of drafting by the number
/// of draft tokens. Least squares; older measurements decay exponentially.
class LinearCostModel {
 public:
  void add(double size, double seconds);
  /// True if two different sizes have been measured.
  bool known() const;
  /// Estimated seconds: at least 0, and not decreasing in `size`.
  double at(double size) const;

 private:
  double n_ = 0, x_ = 0, y_ = 0, xx_ = 0, xy_ = 0;
};

/// Chooses the draft length of every step from reported times and acceptance; one per engine. Used
/// by one thread at a time. It reads no clock: its choices depend on the reports only. Throws
/// nothing.
class DraftLengthController {
 public:
  /// At most `most` draft tokens per row, each with at most `width` candidates that are verified.
  explicit DraftLengthController(int64_t most, int64_t width = 1)
      : most_(most), width_(static_cast<double>(width)) {}

  /// Number of draft tokens for each of `rows` rows in the next step.
  int64_t next(int64_t rows);
  /// Reports a model call with `tokens` tokens in total.
  void called(int64_t tokens, double seconds) { calls_.add(static_cast<double>(tokens), seconds); }
  /// Reports the drafting time of `drafts` draft tokens, all rows together.
  void drafted(int64_t drafts, double seconds) {
    making_.add(static_cast<double>(drafts), seconds);
  }
  /// Reports verification of one row: the first `right` of its `drafts` draft tokens were accepted;
  /// `verified` tokens were verified, with a tree.
  void settled(int64_t drafts, int64_t right, int64_t verified = 0);

  /// Acceptance rate of a draft token whose predecessors are accepted; 1/2 without data.
  double acceptance() const;
  /// Estimated tokens per second of `rows` rows with n draft tokens each.
  double speed(int64_t rows, int64_t n) const;

 private:
  int64_t most_;
  double width_;  // verified tokens per draft position
  LinearCostModel calls_, making_;
  double right_ = 0, tried_ = 0, places_ = 0, verified_ = 0;
  int64_t steps_ = 0;          // number of steps
  int64_t idle_ = 0;           // steps without draft tokens since the last trial
  int64_t wait_ = kFirstWait;  // of them before the next trial
  static constexpr int64_t kFirstWait = 16;
};

}  // namespace tessera::infer
