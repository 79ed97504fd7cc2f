// Successive halving over candidates (Jamieson, Talwalkar 2016, arXiv:1502.07943): all train for a
// share of the budget, the better half for twice as much, until two train for the whole budget.
// Every training has a whole schedule of its own. Torch-free.
//
//   Halving search(8);
//   while (const auto trial = search.next()) search.add(loss_after(trial->candidate,
//   trial->fraction));
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace tessera::train {

/// A training of the search, and what it reached.
struct HalvingTrial {
  size_t candidate = 0;
  double fraction = 0;  // of the budget
  double loss = 0;      // of validation; infinite = diverged
};

class Halving {
 public:
  /// Throws Error(usage) for fewer than 2 candidates.
  explicit Halving(size_t candidates);

  /// What to train next; nothing at the end. The same until its loss is known.
  std::optional<HalvingTrial> next() const;
  /// The loss of next(); what is not finite counts as infinite.
  void add(double loss);

  /// The last trial of every candidate, the best first: those of the last round by loss, then those
  /// of the round before it, and so on; ties in the order of the candidates. Throws Error(internal)
  /// before the end.
  std::vector<HalvingTrial> ranking() const;
  /// In the order of add().
  const std::vector<HalvingTrial>& trials() const { return trials_; }

 private:
  std::vector<size_t> running_;  // of this round
  double fraction_ = 1;
  std::vector<HalvingTrial> trials_, round_, left_;  // left_: the best first
};

/// Trainings of whole budgets that halving costs.
double cost_of_halving(size_t candidates);

}  // namespace tessera::train
