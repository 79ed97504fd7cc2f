// The learning rate of one model: a search of successive halving whose cost is the same for every
// model. Torch-free.
//
// All rates train for 1/8 of the budget, the better half of them for 1/4, the best two for 1/2,
// each with a whole schedule of its own: six rates cost 2.5 budgets. Where the best of a round is
// the least or the greatest rate that was tried, one beyond it, by a factor of 2, joins the round,
// at most twice in all.
//
//   RateSearch search({5e-4, 1e-3, 2e-3, 4e-3});
//   while (const auto trial = search.next()) search.add(loss_after(trial->rate, trial->fraction));
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace tessera::train {

/// A run of the search, and what it reached.
struct RateTrial {
  double rate = 0;
  double fraction = 0;  // of the budget
  double loss = 0;      // of validation; infinite = diverged
};

class RateSearch {
 public:
  /// Throws Error(usage) without rates, for one that is not above 0 or occurs twice.
  explicit RateSearch(std::vector<double> rates);

  /// What to train next; nothing at the end. The same until its loss is known.
  std::optional<RateTrial> next() const;
  void add(double loss);

  /// The rate of the least loss in the last round. Throws Error(internal) before the end.
  double best() const;
  /// Whether that is the least or the greatest rate that was tried: a better one may lie beyond.
  bool at_end() const;
  /// In the order of add().
  const std::vector<RateTrial>& trials() const { return trials_; }

 private:
  void finish_round();

  std::vector<double> rates_;  // all that were tried or are to be, ascending
  std::vector<double> queue_;  // of this round, the next last
  std::vector<RateTrial> trials_, round_;
  int round_number_ = 0, extensions_ = 0;
  size_t given_ = 0;
};

/// rate * 2^k, k = -3 .. 2.
std::vector<double> rates_around(double rate);

/// What a search over this number of rates costs without extensions.
struct SearchCost {
  double budgets = 0;  // trainings of whole budgets
  int64_t runs = 0;
};
SearchCost cost_of_search(size_t rates);

}  // namespace tessera::train
