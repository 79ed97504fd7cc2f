#include "tessera/infer/sampling/ranked.h"

#include <algorithm>
#include <bit>

namespace tessera::infer {

Extent extent_of(std::span<const float> scores) {
  // several at once: sequential comparisons would wait for each other
  constexpr size_t kSide = 16;
  std::array<float, kSide> highest, lowest;
  highest.fill(-INFINITY);
  lowest.fill(INFINITY);
  const auto look = [&](float score, size_t lane) {
    highest[lane] = score > highest[lane] ? score : highest[lane];
    const float finite = score > -INFINITY ? score : INFINITY;
    lowest[lane] = finite < lowest[lane] ? finite : lowest[lane];
  };
  size_t i = 0;
  for (; i + kSide <= scores.size(); i += kSide)
    for (size_t lane = 0; lane < kSide; ++lane) look(scores[i + lane], lane);
  for (; i < scores.size(); ++i) look(scores[i], 0);
  Extent e;
  e.highest = *std::max_element(highest.begin(), highest.end());
  e.lowest = *std::min_element(lowest.begin(), lowest.end());
  if (std::isfinite(e.highest))
    e.best = std::find(scores.begin(), scores.end(), e.highest) - scores.begin();
  return e;
}

Ranked::Ranked(std::span<const float> scores, Extent extent, double temperature, double min_share)
    : scores_(scores), best_(extent.highest), temperature_(temperature) {
  const auto n = static_cast<uint64_t>(scores.size());
  one_ = std::ldexp(1.0, std::min(52, 63 - static_cast<int>(std::bit_width(n))));
  // below it a weight rounds to 0: exp(-x) one < 1/2
  least_ = -std::log(2 * one_) * temperature;
  const double lowest = std::max(static_cast<double>(extent.lowest) - best_, least_);
  if (lowest < 0) step_ = (kBands - 1) / -lowest;
  const double bound = min_share * one_;
  for (const float score : scores) {
    const uint64_t weight = weight_of(score);
    if (weight == 0) continue;
    Prefix& band = bands_[band_of(score)];
    ++band.count;
    band.weight += weight;
    at_least_ += static_cast<double>(weight) >= bound ? 1 : 0;
  }
  for (const Prefix& band : bands_) all_ = {all_.count + band.count, all_.weight + band.weight};
}

double Ranked::entropy() const {
  double sum = 0;
  for (const float score : scores_)
    if (const auto weight = static_cast<double>(weight_of(score)); weight > 0)
      sum += weight * std::log(weight);
  const auto all = static_cast<double>(all_.weight);
  return std::log(all) - sum / all;
}

template <class Enough>
std::pair<Ranked::Prefix, int64_t> Ranked::first_that(const Enough& enough) {
  Prefix run;
  int64_t last = -1;
  for (size_t b = 0; b < kBands; ++b) {
    if (bands_[b].count == 0) continue;
    const Prefix with{run.count + bands_[b].count, run.weight + bands_[b].weight};
    if (!enough(with) && with.count < all_.count) {
      run = with;
      continue;
    }
    for (const Candidate& c : in_order(b)) {
      run = {run.count + 1, run.weight + c.weight};
      last = c.id;
      if (enough(run)) return {run, last};
    }
  }
  return {run, last};
}

Ranked::Prefix Ranked::most_likely(uint64_t count) {
  if (count >= all_.count) return all_;
  return first_that([&](const Prefix& run) { return run.count >= count; }).first;
}

Ranked::Prefix Ranked::reaching(double weight) {
  return first_that([&](const Prefix& run) { return static_cast<double>(run.weight) >= weight; })
      .first;
}

Ranked::Prefix Ranked::heavier(double bound) {
  uint64_t count = 0;
  for (const float score : scores_)
    if (const uint64_t weight = weight_of(score); weight > 0)
      count += static_cast<double>(weight) >= bound ? 1 : 0;
  return count == 0 ? Prefix() : most_likely(count);
}

std::vector<Candidate> Ranked::list(uint64_t count) const {
  std::vector<Candidate> all;
  for (size_t i = 0; i < scores_.size(); ++i)
    if (const uint64_t weight = weight_of(scores_[i]); weight > 0)
      all.push_back({scores_[i], static_cast<int64_t>(i), weight});
  count = std::min<uint64_t>(count, all.size());
  const auto end = all.begin() + static_cast<std::ptrdiff_t>(count);
  std::partial_sort(all.begin(), end, all.end());
  all.erase(end, all.end());
  return all;
}

int64_t Ranked::at(uint64_t weight) {
  return first_that([&](const Prefix& run) { return run.weight > weight; }).second;
}

const std::vector<Candidate>& Ranked::in_order(size_t band) {
  if (sorted_band_ == band) return sorted_;
  sorted_.clear();
  for (size_t i = 0; i < scores_.size(); ++i)
    if (const float score = scores_[i]; score - best_ >= least_ && band_of(score) == band)
      if (const uint64_t weight = weight_of(score); weight > 0)
        sorted_.push_back({score, static_cast<int64_t>(i), weight});
  std::sort(sorted_.begin(), sorted_.end());
  sorted_band_ = band;
  return sorted_;
}

}  // namespace tessera::infer
