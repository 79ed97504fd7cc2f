#include "tessera/train/study/halving.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/error.h"

namespace tessera::train {
namespace {

size_t half_of(size_t n) {
  return (n + 1) / 2;
}

/// Share of the budget of a round of `n` candidates, if the round of two has all of it.
double fraction_of(size_t n) {
  double fraction = 1;
  for (; n > 2; n = half_of(n)) fraction /= 2;
  return fraction;
}

}  // namespace

Halving::Halving(size_t candidates) {
  if (candidates < 2)
    fail(ErrorKind::usage, "search", "{} candidates; expected two or more", candidates);
  for (size_t i = 0; i < candidates; ++i) running_.push_back(i);
  fraction_ = fraction_of(candidates);
}

std::optional<HalvingTrial> Halving::next() const {
  if (round_.size() == running_.size()) return std::nullopt;
  return HalvingTrial{running_[round_.size()], fraction_, 0};
}

void Halving::add(double loss) {
  std::optional<HalvingTrial> trial = next();
  require(trial.has_value(), "search", "a loss after the end");
  trial->loss = std::isfinite(loss) ? loss : INFINITY;
  trials_.push_back(*trial);
  round_.push_back(*trial);
  if (round_.size() < running_.size()) return;
  std::stable_sort(round_.begin(), round_.end(),
                   [](const HalvingTrial& x, const HalvingTrial& y) { return x.loss < y.loss; });
  if (running_.size() == 2) return;
  const size_t kept = half_of(running_.size());
  left_.insert(left_.begin(), round_.begin() + static_cast<std::ptrdiff_t>(kept), round_.end());
  running_.clear();
  for (size_t i = 0; i < kept; ++i) running_.push_back(round_[i].candidate);
  round_.clear();
  fraction_ *= 2;
}

std::vector<HalvingTrial> Halving::ranking() const {
  require(!next().has_value(), "search", "asked before its end");
  std::vector<HalvingTrial> out = round_;
  out.insert(out.end(), left_.begin(), left_.end());
  return out;
}

double cost_of_halving(size_t candidates) {
  double cost = 0;
  for (size_t n = candidates;; n = half_of(n)) {
    cost += fraction_of(n) * static_cast<double>(n);
    if (n <= 2) return cost;
  }
}

}  // namespace tessera::train
