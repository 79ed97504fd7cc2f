#include "tessera/infer/sampling.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::infer {
namespace {

struct Candidate {
  float score = 0;
  int64_t id = 0;
  uint64_t weight = 0;                            // its probability, as a whole number
  bool operator<(const Candidate& other) const {  // most likely first
    return score != other.score ? score > other.score : id < other.id;
  }
};

/// The highest score (the first of equals) and the lowest finite one.
struct Extent {
  float highest = -INFINITY, lowest = INFINITY;
  int64_t best = -1;
};

Extent extent_of(std::span<const float> scores) {
  // side by side, as one comparison after the other would wait for the one before
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

/// The tokens that can be drawn, by descending score and ascending id, in order only where asked.
class Ranked {
 public:
  /// min_share: at_least() counts those so many times as likely as the best.
  Ranked(std::span<const float> scores, Extent extent, double temperature, double min_share)
      : scores_(scores), best_(extent.highest), temperature_(temperature) {
    const auto n = static_cast<uint64_t>(scores.size());
    one_ = std::ldexp(1.0, std::min(52, 63 - static_cast<int>(std::bit_width(n))));
    // below it a weight is rounded to 0: exp(-x) one < 1/2
    least_ = -std::log(2 * one_) * temperature;
    const double lowest = std::max(static_cast<double>(extent.lowest) - best_, least_);
    if (lowest < 0) step_ = (kBands - 1) / -lowest;
    const double bound = min_share * one_;
    for (const float score : scores) {
      const uint64_t weight = weight_of(score);
      if (weight == 0) continue;
      Run& band = bands_[band_of(score)];
      ++band.count;
      band.weight += weight;
      at_least_ += static_cast<double>(weight) >= bound ? 1 : 0;
    }
    for (const Run& band : bands_) all_ = {all_.count + band.count, all_.weight + band.weight};
  }

  /// The first tokens of the order: how many, and their weight.
  struct Run {
    uint64_t count = 0, weight = 0;
  };
  const Run& all() const { return all_; }
  uint64_t at_least() const { return at_least_; }
  Run most_likely(uint64_t count) {
    if (count >= all_.count) return all_;
    return first_that([&](const Run& run) { return run.count >= count; }).first;
  }
  /// The fewest that weigh so much, at least one.
  Run reaching(double weight) {
    return first_that([&](const Run& run) { return static_cast<double>(run.weight) >= weight; })
        .first;
  }
  /// The token at this place of the running sum of weights.
  int64_t at(uint64_t weight) {
    return first_that([&](const Run& run) { return run.weight > weight; }).second;
  }

 private:
  static constexpr size_t kBands = 1024;

  uint64_t weight_of(float score) const {
    const double below = score - best_;
    if (!(below >= least_)) return 0;  // nor what is no number
    return static_cast<uint64_t>(std::exp(below / temperature_) * one_ + 0.5);
  }
  size_t band_of(float score) const { return static_cast<size_t>((best_ - score) * step_); }

  /// The shortest run of the order for which `enough` holds, and the token that it ends with; all
  /// of it where it never does.
  template <class Enough>
  std::pair<Run, int64_t> first_that(const Enough& enough) {
    Run run;
    int64_t last = -1;
    for (size_t b = 0; b < kBands; ++b) {
      if (bands_[b].count == 0) continue;
      const Run with{run.count + bands_[b].count, run.weight + bands_[b].weight};
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

  const std::vector<Candidate>& in_order(size_t band) {
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

}  // namespace

void SamplingOptions::check() const {
  const auto range = [](const char* name, double value, bool holds, const char* expected) {
    if (!holds) fail(ErrorKind::usage, "generate", "{} = {}; expected {}", name, value, expected);
  };
  range("temperature", temperature, temperature >= 0 && std::isfinite(temperature),
        "0 (greedy) or more");
  range("top_k", static_cast<double>(top_k), top_k >= 0, "0 (all) or more");
  range("top_p", top_p, top_p >= 0 && top_p <= 1, "0 to 1");
  range("min_p", min_p, min_p >= 0 && min_p <= 1, "0 to 1");
  range("repetition_penalty", repetition_penalty,
        repetition_penalty > 0 && std::isfinite(repetition_penalty), "more than 0");
  range("presence_penalty", presence_penalty, std::isfinite(presence_penalty), "a number");
  range("frequency_penalty", frequency_penalty, std::isfinite(frequency_penalty), "a number");
  range("repeat_last_n", static_cast<double>(repeat_last_n), repeat_last_n >= -1,
        "-1 (all) or more");
  for (const auto& [id, bias] : logit_bias)
    if (id < 0 || !(bias < INFINITY))
      fail(ErrorKind::usage, "generate",
           "logit_bias of {} for token {}; expected a number, or -infinity, for an id of the "
           "vocabulary",
           bias, id);
}

void adjust(std::span<float> scores,
            std::span<const int64_t> seen,
            size_t given,
            const SamplingOptions& o) {
  for (const auto& [id, bias] : o.logit_bias)
    if (static_cast<size_t>(id) < scores.size())
      scores[static_cast<size_t>(id)] += static_cast<float>(bias);
  if (o.repeat_last_n >= 0) {
    seen = seen.last(std::min(seen.size(), static_cast<size_t>(o.repeat_last_n)));
    given = 0;
  }
  std::vector<bool> done(scores.size(), false);
  const auto penalty = static_cast<float>(o.repetition_penalty);
  for (const int64_t id : seen) {
    const auto i = static_cast<size_t>(id);
    if (penalty == 1 || i >= scores.size() || done[i]) continue;
    done[i] = true;
    scores[i] = scores[i] > 0 ? scores[i] / penalty : scores[i] * penalty;
  }
  if (o.presence_penalty == 0 && o.frequency_penalty == 0) return;
  std::vector<int64_t> said(
      seen.begin() + static_cast<std::ptrdiff_t>(std::min(given, seen.size())), seen.end());
  std::sort(said.begin(), said.end());
  for (size_t begin = 0, end = 0; begin < said.size(); begin = end) {
    while (end < said.size() && said[end] == said[begin]) ++end;
    const auto i = static_cast<size_t>(said[begin]);
    if (i >= scores.size()) continue;
    const double less = o.frequency_penalty * static_cast<double>(end - begin) + o.presence_penalty;
    scores[i] = static_cast<float>(scores[i] - less);
  }
}

int64_t sample(std::span<const float> logits,
               std::span<const int64_t> seen,
               const SamplingOptions& options,
               const RandomKey& key,
               size_t given) {
  std::vector<float> changed;
  std::span<const float> scores = logits;
  if (options.repetition_penalty != 1 || options.presence_penalty != 0 ||
      options.frequency_penalty != 0 || !options.logit_bias.empty()) {
    changed.assign(logits.begin(), logits.end());
    adjust(changed, seen, given, options);
    scores = changed;
  }
  const Extent extent = extent_of(scores);
  if (extent.best < 0)
    fail(ErrorKind::input, "generate", "no finite logit among {}", scores.size());
  if (options.temperature == 0 || options.top_p == 0) return extent.best;

  Ranked ranked(scores, extent, options.temperature, options.min_p);
  Ranked::Run kept = ranked.all();
  if (options.top_k > 0) kept = ranked.most_likely(static_cast<uint64_t>(options.top_k));
  const double mass = static_cast<double>(kept.weight);
  if (ranked.at_least() < kept.count) kept = ranked.most_likely(ranked.at_least());
  if (options.top_p < 1)
    if (const auto nucleus = ranked.reaching(options.top_p * mass); nucleus.count < kept.count)
      kept = nucleus;
  const auto bits = key.block(seen.size());
  const double place =
      (static_cast<double>(bits[0]) + static_cast<double>(bits[1]) * 0x1p-32) * 0x1p-32;
  const auto draw = static_cast<uint64_t>(place * static_cast<double>(kept.weight));
  return ranked.at(std::min(draw, kept.weight - 1));
}

}  // namespace tessera::infer
