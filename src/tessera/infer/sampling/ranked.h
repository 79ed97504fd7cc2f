// The candidates of a draw by descending score and ascending id, sorted only as far as needed.
//
// Probabilities are integers: exp((score - best) / temperature), rounded to a multiple of 2^-b with
// b = 63 - bits of the vocabulary's size, at most 52. Their sums are exact in any order, so the
// vocabulary need not be sorted: scores are put into bands, and only the band in which a filter
// ends or the draw falls is sorted.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace tessera::infer {

struct Candidate {
  float score = 0;
  int64_t id = 0;
  uint64_t weight = 0;                            // probability as an integer
  bool operator<(const Candidate& other) const {  // most likely first
    return score != other.score ? score > other.score : id < other.id;
  }
};

/// The highest score (ties: the first; -1 if none is finite) and the lowest finite score.
struct Extent {
  float highest = -INFINITY, lowest = INFINITY;
  int64_t best = -1;
};
Extent extent_of(std::span<const float> scores);

class Ranked {
 public:
  /// The scores must outlive it. at_least() counts tokens with a probability of at least
  /// `min_share` times that of the best.
  Ranked(std::span<const float> scores, Extent extent, double temperature, double min_share);

  /// A prefix of the order: number of tokens and sum of their weights.
  struct Prefix {
    uint64_t count = 0, weight = 0;
  };
  const Prefix& all() const { return all_; }
  uint64_t weight_of(float score) const {
    const double below = score - best_;
    if (!(below >= least_)) return 0;  // also for NaN
    return static_cast<uint64_t>(std::exp(below / temperature_) * one_ + 0.5);
  }
  uint64_t at_least() const { return at_least_; }
  double entropy() const;  // of all tokens, in nats
  Prefix most_likely(uint64_t count);
  /// The shortest prefix with at least this weight, at least one token.
  Prefix reaching(double weight);
  /// The tokens with at least this weight each.
  Prefix heavier(double bound);
  /// The first `count` tokens in order.
  std::vector<Candidate> list(uint64_t count) const;
  double weight_at(int64_t id) const {
    return static_cast<double>(weight_of(scores_[static_cast<size_t>(id)]));
  }
  /// The token at this position of the cumulative sum of weights.
  int64_t at(uint64_t weight);

 private:
  static constexpr size_t kBands = 1024;

  size_t band_of(float score) const { return static_cast<size_t>((best_ - score) * step_); }
  const std::vector<Candidate>& in_order(size_t band);
  /// The shortest prefix for which `enough` holds, and its last token; the whole order if it never
  /// holds.
  template <class Enough>
  std::pair<Prefix, int64_t> first_that(const Enough& enough);

  std::span<const float> scores_;
  double best_, temperature_;
  double one_ = 1;    // weight of the best token
  double least_ = 0;  // scores further below the best have weight 0
  double step_ = 0;   // bands per unit of scores
  std::array<Prefix, kBands> bands_{};
  Prefix all_;
  uint64_t at_least_ = 0;
  std::vector<Candidate> sorted_;
  size_t sorted_band_ = kBands;
};

}  // namespace tessera::infer
