#include "tessera/infer/sampling.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/text/tokenizer.h"

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
  uint64_t weight_of(float score) const {
    const double below = score - best_;
    if (!(below >= least_)) return 0;  // nor what is no number
    return static_cast<uint64_t>(std::exp(below / temperature_) * one_ + 0.5);
  }
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
  /// Those that weigh so much each.
  Run heavier(double bound) {
    uint64_t count = 0;
    for (const float score : scores_)
      if (const uint64_t weight = weight_of(score); weight > 0)
        count += static_cast<double>(weight) >= bound ? 1 : 0;
    return count == 0 ? Run() : most_likely(count);
  }
  /// The first of the order, in order.
  std::vector<Candidate> list(uint64_t count) {
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
  double weight_at(int64_t id) const {
    return static_cast<double>(weight_of(scores_[static_cast<size_t>(id)]));
  }
  /// The token at this place of the running sum of weights.
  int64_t at(uint64_t weight) {
    return first_that([&](const Run& run) { return run.weight > weight; }).second;
  }

 private:
  static constexpr size_t kBands = 1024;

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

/// What each token loses by DRY.
void hold_back_repeats(std::span<float> scores,
                       std::span<const int64_t> seen,
                       const SamplingOptions& o) {
  if (o.dry_penalty_last_n >= 0)
    seen = seen.last(std::min(seen.size(), static_cast<size_t>(o.dry_penalty_last_n)));
  const auto n = static_cast<int64_t>(seen.size());
  const auto breaks = [&](int64_t id) {
    return std::find(o.dry_breaker_ids.begin(), o.dry_breaker_ids.end(), id) !=
           o.dry_breaker_ids.end();
  };
  // token number i from the end on
  const auto back = [&](int64_t i) { return seen[static_cast<size_t>(n - 1 - i)]; };
  int64_t longest = 0;  // of a match: it ends at the nearest breaker
  while (longest < n && !breaks(back(longest))) ++longest;
  if (longest < std::max<int64_t>(o.dry_allowed_length, 1)) return;
  // z[i]: how many tokens before place i, going back, are those at the end (the Z function)
  std::vector<int64_t> z(static_cast<size_t>(n), 0);
  std::vector<std::pair<int64_t, int64_t>> repeats;  // the token that followed, length
  for (int64_t i = 1, left = 0, right = 0; i < n; ++i) {
    int64_t k = i < right ? std::min(right - i, z[static_cast<size_t>(i - left)]) : 0;
    while (i + k < n && back(k) == back(i + k)) ++k;
    z[static_cast<size_t>(i)] = k;
    if (i + k > right) left = i, right = i + k;
    const int64_t length = std::min(k, longest);
    if (length >= std::max<int64_t>(o.dry_allowed_length, 1) && !breaks(back(i - 1)))
      repeats.emplace_back(back(i - 1), length);
  }
  // no power beyond what float32 has: ln of the largest is 88.72
  const double most = o.dry_base > 1 ? std::floor(88.7228391 / std::log(o.dry_base)) : 0;
  std::sort(repeats.begin(), repeats.end());
  for (size_t i = 0; i < repeats.size(); ++i) {
    const auto [id, length] = repeats[i];
    if (i + 1 < repeats.size() && repeats[i + 1].first == id) continue;  // a longer one follows
    if (static_cast<size_t>(id) >= scores.size()) continue;
    const double power = std::min(static_cast<double>(length - o.dry_allowed_length), most);
    float& score = scores[static_cast<size_t>(id)];
    score = static_cast<float>(score - o.dry_multiplier * std::pow(o.dry_base, power));
  }
}

/// Logits too far below the best go.
void cut_below(std::span<float> scores, double highest, double deviations) {
  double sum = 0, squares = 0;
  int64_t n = 0;
  for (const float z : scores)
    if (std::isfinite(z)) sum += z - highest, ++n;
  const double mean = sum / static_cast<double>(n);
  for (const float z : scores)
    if (std::isfinite(z)) squares += (z - highest - mean) * (z - highest - mean);
  const double least = highest - deviations * std::sqrt(squares / static_cast<double>(n));
  for (float& z : scores)
    if (!(z >= least)) z = -INFINITY;
}

/// Those nearest to the entropy of all, until they weigh p of it; the order stays.
void keep_typical(std::vector<Candidate>& list, double p) {
  double all = 0, entropy = 0;
  for (const Candidate& c : list) all += static_cast<double>(c.weight);
  std::vector<double> surprise;
  for (const Candidate& c : list) {
    const double share = static_cast<double>(c.weight) / all;
    surprise.push_back(-std::log(share));
    entropy += share * surprise.back();
  }
  std::vector<size_t> order(list.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::abs(surprise[a] - entropy) < std::abs(surprise[b] - entropy);
  });
  double mass = 0;
  size_t kept = 0;
  while (kept < order.size() && (kept == 0 || mass < p * all))
    mass += static_cast<double>(list[order[kept++]].weight);
  order.resize(kept);
  std::sort(order.begin(), order.end());
  std::vector<Candidate> left;
  for (const size_t i : order) left.push_back(list[i]);
  list = std::move(left);
}

/// A number of [0, 1) out of two words.
double place_of(uint32_t low, uint32_t high) {
  return (static_cast<double>(low) + static_cast<double>(high) * 0x1p-32) * 0x1p-32;
}

/// What a draw at `place` is, of weights [from, to) of a running sum.
uint64_t drawn(double place, uint64_t from, uint64_t to) {
  return from +
         std::min(static_cast<uint64_t>(place * static_cast<double>(to - from)), to - from - 1);
}

}  // namespace

std::vector<int64_t> breaker_ids(const text::Tokenizer& tokenizer,
                                 std::span<const std::string> texts) {
  std::vector<int64_t> ids;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id)
    if (const std::optional<std::string> bytes = tokenizer.bytes_of(id))
      if (std::any_of(texts.begin(), texts.end(), [&](const std::string& text) {
            return !text.empty() && bytes->find(text) != std::string::npos;
          }))
        ids.push_back(id);
  return ids;
}

void adjust(std::span<float> scores,
            std::span<const int64_t> seen,
            size_t given,
            const SamplingOptions& o) {
  for (const auto& [id, bias] : o.logit_bias)
    if (static_cast<size_t>(id) < scores.size())
      scores[static_cast<size_t>(id)] += static_cast<float>(bias);
  const std::span<const int64_t> all = seen;
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
  std::vector<int64_t> said;
  if (o.presence_penalty != 0 || o.frequency_penalty != 0)
    said.assign(seen.begin() + static_cast<std::ptrdiff_t>(std::min(given, seen.size())),
                seen.end());
  std::sort(said.begin(), said.end());
  for (size_t begin = 0, end = 0; begin < said.size(); begin = end) {
    while (end < said.size() && said[end] == said[begin]) ++end;
    const auto i = static_cast<size_t>(said[begin]);
    if (i >= scores.size()) continue;
    const double less = o.frequency_penalty * static_cast<double>(end - begin) + o.presence_penalty;
    scores[i] = static_cast<float>(scores[i] - less);
  }
  if (o.dry_multiplier > 0) hold_back_repeats(scores, all, o);
}

namespace {

/// What a token is drawn from: the order of what filters leave, without the first `gone` of it, or
/// a list in that order.
struct Pool {
  Ranked::Run gone = {}, kept = {};
  std::vector<Candidate> list = {};

  uint64_t weight() const {
    uint64_t sum = list.empty() ? kept.weight - gone.weight : 0;
    for (const Candidate& c : list) sum += c.weight;
    return sum;
  }
  int64_t at(Ranked& ranked, double place) const {
    if (list.empty()) return ranked.at(drawn(place, gone.weight, kept.weight));
    uint64_t left = drawn(place, 0, weight());
    for (const Candidate& c : list) {
      if (left < c.weight) return c.id;
      left -= c.weight;
    }
    return list.back().id;
  }
  /// The likeliest of it.
  std::vector<Candidate> first(Ranked& ranked, uint64_t n) const {
    std::vector<Candidate> out = list;
    if (list.empty()) {
      out = ranked.list(gone.count + std::min(n, kept.count - gone.count));
      out.erase(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(gone.count));
    }
    out.resize(std::min<size_t>(out.size(), n));
    return out;
  }
};

/// What filters leave; `excludes`: XTC does, this time.
Pool pool_of(Ranked& ranked, const SamplingOptions& options, bool excludes) {
  Pool out;
  Ranked::Run& kept = out.kept = ranked.all();
  if (options.top_k > 0) kept = ranked.most_likely(static_cast<uint64_t>(options.top_k));
  const double mass = static_cast<double>(kept.weight);
  if (ranked.at_least() < kept.count) kept = ranked.most_likely(ranked.at_least());
  if (options.top_p < 1)
    if (const auto nucleus = ranked.reaching(options.top_p * mass); nucleus.count < kept.count)
      kept = nucleus;
  if (options.typical_p == 1) {
    if (excludes)
      if (const auto top = ranked.heavier(options.xtc_threshold * static_cast<double>(kept.weight));
          top.count > 1)
        out.gone = ranked.most_likely(std::min(top.count, kept.count) - 1);
    return out;
  }
  out.list = ranked.list(kept.count);
  keep_typical(out.list, options.typical_p);
  if (excludes) {
    const double bound = options.xtc_threshold * static_cast<double>(out.weight());
    size_t top = 0;
    while (top < out.list.size() && static_cast<double>(out.list[top].weight) >= bound) ++top;
    if (top > 1)
      out.list.erase(out.list.begin(), out.list.begin() + static_cast<std::ptrdiff_t>(top - 1));
  }
  return out;
}

/// What surprises by no more than mu bits.
Pool unsurprising(Ranked& ranked, double mu) {
  Pool out;
  out.kept = ranked.heavier(std::exp2(-mu) * static_cast<double>(ranked.all().weight));
  if (out.kept.count == 0) out.kept = ranked.most_likely(1);
  return out;
}

}  // namespace

int64_t sample(std::span<const float> logits,
               std::span<const int64_t> seen,
               const SamplingOptions& options,
               const RandomKey& key,
               size_t given,
               SamplerMemory* memory,
               int64_t top,
               Chances* chances) {
  const bool mirostat = options.mirostat != 0 && options.temperature > 0;
  const bool cuts = options.top_n_sigma > 0 && options.temperature > 0 && !mirostat;
  std::vector<float> changed;
  std::span<const float> scores = logits;
  if (options.repetition_penalty != 1 || options.presence_penalty != 0 ||
      options.frequency_penalty != 0 || options.dry_multiplier > 0 || cuts ||
      !options.logit_bias.empty()) {
    changed.assign(logits.begin(), logits.end());
    adjust(changed, seen, given, options);
    scores = changed;
  }
  Extent extent = extent_of(scores);
  if (extent.best < 0)
    fail(ErrorKind::input, "generate", "no finite logit among {}", scores.size());
  if (options.temperature == 0 || (options.top_p == 0 && !mirostat)) {
    if (chances != nullptr) {
      *chances = {{extent.best, 0}, {}};
      if (top > 0) chances->top.push_back({extent.best, 0});
    }
    return extent.best;
  }
  if (cuts) {
    cut_below(changed, extent.highest, options.top_n_sigma);
    extent = extent_of(scores);
  }

  Ranked ranked(scores, extent, options.temperature, options.min_p);
  const auto bits = key.block(seen.size());
  SamplerMemory fresh;
  std::optional<double>& mu = (memory != nullptr ? memory : &fresh)->mu;
  if (mirostat && !mu) mu = 2 * options.mirostat_tau;
  const bool excludes =
      options.xtc_probability > 0 && place_of(bits[2], bits[3]) < options.xtc_probability;
  const Pool pool = mirostat ? unsurprising(ranked, *mu) : pool_of(ranked, options, excludes);
  const int64_t id = pool.at(ranked, place_of(bits[0], bits[1]));
  const auto all = static_cast<double>(pool.weight());
  if (mirostat)
    mu =
        *mu - options.mirostat_eta * (std::log2(all / ranked.weight_at(id)) - options.mirostat_tau);
  if (chances != nullptr) {
    const auto log_p = [&](double weight) { return std::log(weight) - std::log(all); };
    *chances = {{id, log_p(ranked.weight_at(id))}, {}};
    for (const Candidate& c : pool.first(ranked, static_cast<uint64_t>(std::max<int64_t>(0, top))))
      chances->top.push_back({c.id, log_p(static_cast<double>(c.weight))});
  }
  return id;
}

}  // namespace tessera::infer
