#include "tessera/infer/sampling/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/infer/sampling/ranked.h"
#include "tessera/infer/sampling/repetition.h"
#include "tessera/text/tokenizer/tokenizer.h"

namespace tessera::infer {
namespace {

/// Removes logits too far below the best.
void cut_below(std::span<float> scores, double deviations) {
  const double highest = extent_of(scores).highest;
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

/// -ln p of each.
std::vector<double> surprises_of(std::span<const Candidate> list) {
  double all = 0;
  for (const Candidate& c : list) all += static_cast<double>(c.weight);
  std::vector<double> out;
  for (const Candidate& c : list) out.push_back(-std::log(static_cast<double>(c.weight) / all));
  return out;
}

double entropy_of(std::span<const double> surprises) {
  double sum = 0;
  for (const double s : surprises) sum += s * std::exp(-s);
  return sum;
}

/// The tokens nearest to the entropy, until their total probability reaches p; the order stays.
void keep_typical(std::vector<Candidate>& list, double p) {
  const std::vector<double> surprises = surprises_of(list);
  const double entropy = entropy_of(surprises);
  double all = 0;
  for (const Candidate& c : list) all += static_cast<double>(c.weight);
  std::vector<size_t> order(list.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::abs(surprises[a] - entropy) < std::abs(surprises[b] - entropy);
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

/// A number in [0, 1) from two words.
double place_of(uint32_t low, uint32_t high) {
  return (static_cast<double>(low) + static_cast<double>(high) * 0x1p-32) * 0x1p-32;
}

/// The draw at position `place` within weights [from, to) of a cumulative sum.
uint64_t drawn(double place, uint64_t from, uint64_t to) {
  return from +
         std::min(static_cast<uint64_t>(place * static_cast<double>(to - from)), to - from - 1);
}

/// The tokens that samplers have left: a prefix of the order of the logits, `kept_` tokens without
/// the first `gone_`, or a list in that order.
class Pool {
 public:
  Pool(std::span<const float> logits, double min_p) : scores_(logits), min_p_(min_p) {}

  /// For samplers that change logits: sets removed tokens to -infinity and applies the temperature
  /// so far.
  std::span<float> logits() {
    narrow();
    own();
    if (temperature_ != 1)
      for (float& z : own_) z = static_cast<float>(z / temperature_);
    temperature_ = 1;
    ranked_.reset();
    return own_;
  }
  void set_temperature(double temperature) {
    narrow();
    ranked_.reset();
    temperature_ *= temperature;
  }
  /// Dynamic temperature: between these two, the higher the entropy the higher.
  double temperature_by_entropy(double low, double high, double exponent) {
    narrow();
    const double highest = extent().highest;
    double sum = 0, below = 0;
    int64_t n = 0;
    for (const float z : scores_) {
      if (!std::isfinite(z)) continue;
      const double less = (z - highest) / temperature_, p = std::exp(less);
      ++n, sum += p, below += p * less;
    }
    if (n < 2) return high;
    const double entropy = std::log(sum) - below / sum;
    return low + (high - low) * std::pow(entropy / std::log(static_cast<double>(n)), exponent);
  }
  int64_t best() {
    narrow();
    return extent().best;
  }

  void keep_first(uint64_t count) {
    if (count < prefix().count) kept_ = ranked_->most_likely(std::max<uint64_t>(1, count));
  }
  void keep_mass(double p) {
    const auto mass = static_cast<double>(prefix().weight);
    if (const auto nucleus = ranked_->reaching(p * mass); nucleus.count < kept_.count)
      kept_ = nucleus;
  }
  void keep_near_best() {
    prefix();
    keep_first(ranked_->at_least());
  }
  void keep_likely(double p) {
    const auto mass = static_cast<double>(prefix().weight);
    keep_first(ranked_->heavier(p * mass).count);
  }
  void keep_typical(double p) {
    list_ = ranked_->list(prefix().count);
    infer::keep_typical(list_, p);
  }
  double entropy() {
    const uint64_t count = prefix().count;
    return count < ranked_->all().count ? entropy_of(surprises_of(ranked_->list(count)))
                                        : ranked_->entropy();
  }
  /// Top-h: the tokens whose -p ln p sum to a share of the entropy, among the best 100.
  void keep_surprise(double share) {
    constexpr uint64_t kMost = 100;
    keep_first(kMost);
    const std::vector<double> surprises = surprises_of(ranked_->list(kept_.count));
    const double most = share * entropy_of(surprises);
    double sum = 0;
    uint64_t count = 0;
    while (count < surprises.size() &&
           (sum += surprises[count] * std::exp(-surprises[count])) <= most)
      ++count;
    keep_first(count);
  }
  void drop_top(double threshold) {
    const auto mass = static_cast<double>(prefix().weight);
    const auto top = ranked_->heavier(threshold * mass);
    if (top.count > 1) gone_ = ranked_->most_likely(std::min(top.count, kept_.count) - 1);
  }
  /// Tokens with a surprise of at most mu bits.
  void keep_unsurprising(double mu) {
    const auto mass = static_cast<double>(prefix().weight);
    keep_first(ranked_->heavier(std::exp2(-mu) * mass).count);
  }

  uint64_t weight() {
    rank();
    uint64_t sum = list_.empty() ? kept_.weight - gone_.weight : 0;
    for (const Candidate& c : list_) sum += c.weight;
    return sum;
  }
  double weight_at(int64_t id) const { return ranked_->weight_at(id); }
  int64_t at(double place) {
    rank();
    if (list_.empty()) return ranked_->at(drawn(place, gone_.weight, kept_.weight));
    uint64_t left = drawn(place, 0, weight());
    for (const Candidate& c : list_) {
      if (left < c.weight) return c.id;
      left -= c.weight;
    }
    return list_.back().id;
  }
  /// The most likely of them.
  std::vector<Candidate> first(uint64_t n) {
    rank();
    std::vector<Candidate> out = list_;
    if (list_.empty()) {
      out = ranked_->list(gone_.count + std::min(n, kept_.count - gone_.count));
      out.erase(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(gone_.count));
    }
    out.resize(std::min<size_t>(out.size(), n));
    return out;
  }

 private:
  Extent extent() const {
    const Extent out = extent_of(scores_);
    if (out.best < 0)
      fail(ErrorKind::input, "generate", "no finite logit among {}", scores_.size());
    return out;
  }
  void own() {
    if (own_.empty()) own_.assign(scores_.begin(), scores_.end());
    scores_ = own_;
  }
  void rank() {
    if (ranked_) return;
    ranked_.emplace(scores_, extent(), temperature_, min_p_);
    kept_ = ranked_->all();
    gone_ = {};
    list_.clear();
  }
  /// The remaining tokens as a prefix of an order.
  const Ranked::Prefix& prefix() {
    if (ranked_ && (gone_.count > 0 || !list_.empty())) narrow();
    rank();
    return kept_;
  }
  /// Sets removed tokens to -infinity.
  void narrow() {
    if (!ranked_) return;
    if (gone_.count > 0 || !list_.empty() || kept_.count < ranked_->all().count) {
      const std::vector<Candidate> left = first(kept_.count);
      own();
      std::fill(own_.begin(), own_.end(), -INFINITY);
      for (const Candidate& c : left) own_[static_cast<size_t>(c.id)] = c.score;
    }
    ranked_.reset();
  }

  std::span<const float> scores_;
  std::vector<float> own_ = {};  // a copy, if they differ from the model's
  double min_p_, temperature_ = 1;
  std::optional<Ranked> ranked_ = {};
  Ranked::Prefix kept_ = {}, gone_ = {};
  std::vector<Candidate> list_ = {};
};

bool masks(const SamplingOptions& o) {
  return o.allowed_ids || !o.sequence_bias.empty() || !o.logit_bias.empty();
}

void mask(std::span<float> scores, std::span<const int64_t> seen, const SamplingOptions& o) {
  if (o.allowed_ids) {
    std::vector<float> kept(scores.size(), -INFINITY);
    for (const int64_t id : *o.allowed_ids)
      if (static_cast<size_t>(id) < scores.size())
        kept[static_cast<size_t>(id)] = scores[static_cast<size_t>(id)];
    std::copy(kept.begin(), kept.end(), scores.begin());
  }
  bias_sequences(scores, seen, o.sequence_bias);
  for (const auto& [id, bias] : o.logit_bias)
    if (static_cast<size_t>(id) < scores.size())
      scores[static_cast<size_t>(id)] += static_cast<float>(bias);
}

/// True if a sampler changes single logits by the tokens before.
bool changes(Sampler sampler, const SamplingOptions& o) {
  const bool single = sampler == Sampler::penalties || sampler == Sampler::no_repeat_ngram ||
                      sampler == Sampler::dry;
  return single && acts(sampler, o);
}

void change(Sampler sampler,
            std::span<float> scores,
            std::span<const int64_t> seen,
            size_t given,
            const SamplingOptions& o) {
  if (sampler == Sampler::penalties) {
    favour_source(scores, o.source_ids, o.encoder_repetition_penalty);
    apply_penalties(scores, seen, given, o);
    hasten_end(scores, static_cast<int64_t>(seen.size() - given), o);
  } else if (sampler == Sampler::no_repeat_ngram) {
    block_ngrams(scores, seen, seen, o.no_repeat_ngram_size);
    block_ngrams(scores, seen, o.source_ids, o.encoder_no_repeat_ngram_size);
  } else if (sampler == Sampler::dry) {
    apply_dry(scores, seen, o);
  }
}

/// One choice: applies the samplers of a request in order.
class Choice {
 public:
  Choice(std::span<const float> logits,
         std::span<const int64_t> seen,
         size_t given,
         const SamplingOptions& options,
         const RandomKey& key)
      : pool(logits, options.min_p),
        seen_(seen),
        given_(given),
        o_(options),
        bits_(key.block(seen.size())) {
    if (masks(o_)) mask(pool.logits(), seen_, o_);
    for (const Sampler sampler : o_.samplers)
      if (!done_ && (!o_.mirostat || !filters(sampler))) apply(sampler);
  }

  Pool pool;
  /// The temperature was 0: chooses the best remaining token.
  bool greedy() const { return done_; }
  double place() const { return place_of(bits_[0], bits_[1]); }

 private:
  void apply(Sampler sampler) {
    switch (sampler) {
      case Sampler::penalties:
      case Sampler::no_repeat_ngram:
      case Sampler::dry:
        if (changes(sampler, o_)) change(sampler, pool.logits(), seen_, given_, o_);
        return;
      case Sampler::top_n_sigma:
        if (o_.top_n_sigma > 0) cut_below(pool.logits(), o_.top_n_sigma);
        return;
      case Sampler::temperature:
        done_ = o_.temperature == 0;
        if (done_) return;
        if (o_.dynatemp_range > 0)
          pool.set_temperature(std::max(
              pool.temperature_by_entropy(std::max(0.0, o_.temperature - o_.dynatemp_range),
                                          o_.temperature + o_.dynatemp_range, o_.dynatemp_exponent),
              kLeastTemperature));
        else if (o_.temperature != 1)
          pool.set_temperature(o_.temperature);
        return;
      case Sampler::top_h:
        if (o_.top_h > 0) pool.keep_surprise(o_.top_h);
        return;
      case Sampler::top_k:
        if (o_.top_k > 0) pool.keep_first(static_cast<uint64_t>(o_.top_k));
        return;
      case Sampler::top_p:
        if (o_.top_p < 1) pool.keep_mass(o_.top_p);
        return;
      case Sampler::min_p:
        if (o_.min_p > 0) pool.keep_near_best();
        return;
      case Sampler::typical_p:
        if (o_.typical_p < 1) pool.keep_typical(o_.typical_p);
        return;
      case Sampler::epsilon:
        if (o_.epsilon_cutoff > 0) pool.keep_likely(o_.epsilon_cutoff);
        return;
      case Sampler::eta:
        if (o_.eta_cutoff > 0)
          pool.keep_likely(
              std::min(o_.eta_cutoff, std::sqrt(o_.eta_cutoff) * std::exp(-pool.entropy())));
        return;
      case Sampler::xtc:
        if (o_.xtc_probability > 0 && place_of(bits_[2], bits_[3]) < o_.xtc_probability)
          pool.drop_top(o_.xtc_threshold);
        return;
    }
  }

  /// A dynamic temperature may become 0.
  static constexpr double kLeastTemperature = 1e-6;

  std::span<const int64_t> seen_;
  size_t given_;
  const SamplingOptions& o_;
  std::array<uint32_t, 4> bits_;
  bool done_ = false;
};

}  // namespace

bool takes_most_likely(const SamplingOptions& options) {
  if (options.temperature != 0 || masks(options)) return false;
  for (const Sampler sampler : options.samplers) {
    if (sampler == Sampler::temperature) return true;
    const bool keeps_it =
        sampler == Sampler::top_k || sampler == Sampler::top_p || sampler == Sampler::min_p;
    if (acts(sampler, options) && !keeps_it) return false;
  }
  return false;
}

void find_ids(SamplingOptions& options, const text::Tokenizer& tokenizer) {
  if (options.dry_multiplier > 0)
    options.dry_breaker_ids = breaker_ids(tokenizer, options.dry_sequence_breakers);
  for (const std::string& word : std::exchange(options.bad_words, {}))
    // a word inside a text starts with the space before it
    for (const std::string& said : {word, " " + word}) {
      const std::vector<int32_t> ids = tokenizer.encode(said, {.add_special = false});
      if (!ids.empty())
        options.sequence_bias.emplace_back(std::vector<int64_t>(ids.begin(), ids.end()), -INFINITY);
    }
}

bool change_logits(std::span<float> scores,
                   std::span<const int64_t> seen,
                   size_t given,
                   const SamplingOptions& options) {
  bool any = masks(options);
  if (any) mask(scores, seen, options);
  for (const Sampler sampler : options.samplers) {
    if (!changes(sampler, options)) continue;
    any = true;
    change(sampler, scores, seen, given, options);
  }
  return any;
}

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

int64_t sample(std::span<const float> logits,
               std::span<const int64_t> seen,
               const SamplingOptions& options,
               const RandomKey& key,
               size_t given,
               SamplerMemory* memory,
               int64_t top,
               PositionLogprobs* logprobs) {
  Choice choice(logits, seen, given, options, key);
  Pool& pool = choice.pool;
  if (choice.greedy()) {
    const int64_t best = pool.best();
    if (logprobs != nullptr) {
      *logprobs = {{best, 0}, {}};
      if (top > 0) logprobs->top.push_back({best, 0});
    }
    return best;
  }
  SamplerMemory fresh;
  std::optional<double>& mu = (memory != nullptr ? memory : &fresh)->mu;
  if (options.mirostat != 0) {
    if (!mu) mu = 2 * options.mirostat_tau;
    pool.keep_unsurprising(*mu);
  }
  const int64_t id = pool.at(choice.place());
  const auto all = static_cast<double>(pool.weight());
  if (options.mirostat != 0)
    mu = *mu - options.mirostat_eta * (std::log2(all / pool.weight_at(id)) - options.mirostat_tau);
  if (logprobs != nullptr) {
    const auto log_p = [&](double weight) { return std::log(weight) - std::log(all); };
    *logprobs = {{id, log_p(pool.weight_at(id))}, {}};
    for (const Candidate& c : pool.first(static_cast<uint64_t>(std::max<int64_t>(0, top))))
      logprobs->top.push_back({c.id, log_p(static_cast<double>(c.weight))});
  }
  return id;
}

}  // namespace tessera::infer
