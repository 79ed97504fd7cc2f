#include "tessera/train/study/rate_search.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "tessera/base/error.h"

namespace tessera::train {
namespace {

constexpr std::array kFractions{1.0 / 8, 1.0 / 4, 1.0 / 2};
constexpr int kMostExtensions = 2;
constexpr double kStep = 2;

/// How many of `rates` take part in a round.
size_t takers(size_t round, size_t rates) {
  const size_t half = (rates + 1) / 2;
  return round == 0 ? rates : round == 1 ? half : std::min<size_t>(2, half);
}

}  // namespace

RateSearch::RateSearch(std::vector<double> rates) : rates_(std::move(rates)) {
  std::sort(rates_.begin(), rates_.end());
  if (rates_.empty())
    fail(ErrorKind::usage, "compare", "no learning rates to try; expected one or more");
  for (size_t i = 0; i < rates_.size(); ++i)
    if (!(rates_[i] > 0) || !std::isfinite(rates_[i]) || (i > 0 && rates_[i] == rates_[i - 1]))
      fail(ErrorKind::usage, "compare", "learning rate {:g}{}; expected different rates above 0",
           rates_[i], i > 0 && rates_[i] == rates_[i - 1] ? " twice" : "");
  given_ = rates_.size();
  queue_.assign(rates_.rbegin(), rates_.rend());
}

std::optional<RateTrial> RateSearch::next() const {
  if (queue_.empty()) return std::nullopt;
  return RateTrial{queue_.back(), kFractions[static_cast<size_t>(round_number_)], 0};
}

void RateSearch::add(double loss) {
  std::optional<RateTrial> trial = next();
  require(trial.has_value(), "rate_search", "a loss after the end");
  trial->loss = std::isfinite(loss) ? loss : INFINITY;
  queue_.pop_back();
  trials_.push_back(*trial);
  round_.push_back(*trial);
  if (queue_.empty()) finish_round();
}

void RateSearch::finish_round() {
  // ties: the smaller rate
  std::sort(round_.begin(), round_.end(), [](const RateTrial& a, const RateTrial& b) {
    return a.loss != b.loss ? a.loss < b.loss : a.rate < b.rate;
  });
  if (extensions_ < kMostExtensions && at_end() && std::isfinite(round_[0].loss)) {
    ++extensions_;
    const bool least = round_[0].rate == rates_.front();
    const double beyond = least ? rates_.front() / kStep : rates_.back() * kStep;
    rates_.insert(least ? rates_.begin() : rates_.end(), beyond);
    queue_.push_back(beyond);
    return;
  }
  if (round_number_ + 1 == static_cast<int>(kFractions.size())) return;
  ++round_number_;
  const size_t kept = std::min(round_.size(), takers(static_cast<size_t>(round_number_), given_));
  for (size_t i = kept; i-- > 0;) queue_.push_back(round_[i].rate);
  round_.clear();
}

double RateSearch::best() const {
  require(queue_.empty() && !round_.empty(), "rate_search", "asked before its end");
  return round_[0].rate;
}

bool RateSearch::at_end() const {
  require(!round_.empty(), "rate_search", "asked before a loss");
  return rates_.size() > 1 && (round_[0].rate == rates_.front() || round_[0].rate == rates_.back());
}

std::vector<double> rates_around(double rate) {
  std::vector<double> out;
  for (int k = -3; k <= 2; ++k) out.push_back(std::ldexp(rate, k));
  return out;
}

SearchCost cost_of_search(size_t rates) {
  SearchCost cost;
  for (size_t round = 0; round < kFractions.size(); ++round) {
    const size_t runs = takers(round, rates);
    cost.budgets += kFractions[round] * static_cast<double>(runs);
    cost.runs += static_cast<int64_t>(runs);
  }
  return cost;
}

}  // namespace tessera::train
