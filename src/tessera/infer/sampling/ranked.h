// The tokens that can be drawn, by descending score and ascending id, in order only where asked.
//
// The probabilities are whole numbers: exp((score - best) / temperature), rounded to a multiple of
// 2^-b with b = 63 - bits of the vocabulary's size, at most 52. Their sums are exact in any order,
// so that the vocabulary need not be sorted: it is put into bands of scores, and only the band in
// which a filter ends or the draw falls is.
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
  uint64_t weight = 0;                            // its probability, as a whole number
  bool operator<(const Candidate& other) const {  // most likely first
    return score != other.score ? score > other.score : id < other.id;
  }
};

/// The highest score (the first of equals, -1 where none is finite) and the lowest finite one.
struct Extent {
  float highest = -INFINITY, lowest = INFINITY;
  int64_t best = -1;
};
Extent extent_of(std::span<const float> scores);

class Ranked {
 public:
  /// The scores must outlive it. min_share: at_least() counts those so many times as likely as the
  /// best.
  Ranked(std::span<const float> scores, Extent extent, double temperature, double min_share);

  /// The first tokens of the order: how many, and their weight.
  struct Run {
    uint64_t count = 0, weight = 0;
  };
  const Run& all() const { return all_; }
  uint64_t weight_of(float score) const {
    const double below = score - best_;
    if (!(below >= least_)) return 0;  // nor what is no number
    return static_cast<uint64_t>(std::exp(below / temperature_) * one_ + 0.5);
  }
  uint64_t at_least() const { return at_least_; }
  double entropy() const;  // of all, in nats
  Run most_likely(uint64_t count);
  /// The fewest that weigh so much, at least one.
  Run reaching(double weight);
  /// Those that weigh so much each.
  Run heavier(double bound);
  /// The first of the order, in order.
  std::vector<Candidate> list(uint64_t count) const;
  double weight_at(int64_t id) const {
    return static_cast<double>(weight_of(scores_[static_cast<size_t>(id)]));
  }
  /// The token at this place of the running sum of weights.
  int64_t at(uint64_t weight);

 private:
  static constexpr size_t kBands = 1024;

  size_t band_of(float score) const { return static_cast<size_t>((best_ - score) * step_); }
  const std::vector<Candidate>& in_order(size_t band);
  /// The shortest run of the order for which `enough` holds, and the token that it ends with; all
  /// of it where it never does.
  template <class Enough>
  std::pair<Run, int64_t> first_that(const Enough& enough);

  std::span<const float> scores_;
  double best_, temperature_;
  double one_ = 1;    // the weight of the best
  double least_ = 0;  // scores so far below the best have no weight
  double step_ = 0;   // bands per unit of scores
  std::array<Run, kBands> bands_{};
  Run all_;
  uint64_t at_least_ = 0;
  std::vector<Candidate> sorted_;
  size_t sorted_band_ = kBands;
};

}  // namespace tessera::infer
