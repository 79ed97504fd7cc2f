// How many guesses pay: a step with n of them says (1 - a^(n+1)) / (1 - a) tokens on average, where
// each is right with the chance a when those before it are, and costs what verifying 1 + n tokens
// and making n guesses takes. Both are measured as the text goes; what is taken is the n with the
// most tokens a second, 0 where no guess pays. Leviathan et al. 2022, arXiv:2211.17192, sec. 3.3,
// theorem 3.8, with measured in place of assumed costs.
//
// What Pace says follows from what it is told alone. The text does not depend on it.
#pragma once

#include <cstdint>

namespace tessera::infer {

/// Seconds as a line: of calls by their tokens, or of making guesses by their number. Old
/// measurements fade.
class LinearCostModel {
 public:
  void add(double size, double seconds);
  /// Whether two different sizes have been seen.
  bool known() const;
  /// At least 0, and no less for more.
  double at(double size) const;

 private:
  double n_ = 0, x_ = 0, y_ = 0, xx_ = 0, xy_ = 0;
};

class DraftLengthController {
 public:
  /// At most so many guesses for a row, each with at most so many candidates that are verified.
  explicit DraftLengthController(int64_t most, int64_t width = 1)
      : most_(most), width_(static_cast<double>(width)) {}

  /// Guesses for each of `rows` rows in the next step.
  int64_t next(int64_t rows);
  /// A call of the model with so many tokens, each behind what its row holds.
  void called(int64_t tokens, double seconds) { calls_.add(static_cast<double>(tokens), seconds); }
  /// So many guesses, of all rows together, have been made.
  void guessed(int64_t drafts, double seconds) {
    making_.add(static_cast<double>(drafts), seconds);
  }
  /// Of a row's guesses, the first `right` were; `verified` tokens were, where they branch.
  void settled(int64_t drafts, int64_t right, int64_t verified = 0);

  /// How often a guess is right when those before it are; about 1/2 before any is known.
  double acceptance() const;
  /// Tokens a second of `rows` rows with n guesses each, by what is known.
  double speed(int64_t rows, int64_t n) const;

 private:
  int64_t most_;
  double width_;  // tokens that are verified for a place ahead
  LinearCostModel calls_, making_;
  double right_ = 0, tried_ = 0, places_ = 0, verified_ = 0;
  int64_t steps_ = 0;          // so far
  int64_t idle_ = 0;           // steps without guesses since the last ones
  int64_t wait_ = kFirstWait;  // so many of them before another try
  static constexpr int64_t kFirstWait = 16;
};

}  // namespace tessera::infer
