#include "tessera/infer/sampling/decoding_fields.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <sstream>

#include "tessera/base/testing.h"
#include "tessera/infer/sampling/logprobs.h"
#include "tessera/infer/sampling/repetition.h"

namespace tessera::infer::sampling_test {
namespace {

/// What sample() means: the whole vocabulary in order, probabilities in double.
class Definition {
 public:
  Definition(const std::vector<float>& logits, const SamplingOptions& options)
      : order_(logits.size()), p_(logits.size()) {
    std::iota(order_.begin(), order_.end(), 0);
    std::stable_sort(order_.begin(), order_.end(), [&](int64_t a, int64_t b) {
      return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
    });
    if (options.top_k > 0)
      order_.resize(std::min(order_.size(), static_cast<size_t>(options.top_k)));
    const double best = logits[static_cast<size_t>(order_[0])];
    double total = 0;
    for (const int64_t id : order_)
      total += weight(id) =
          std::exp((logits[static_cast<size_t>(id)] - best) / options.temperature);
    double mass = 0;
    size_t kept = 0;
    while (kept < order_.size() &&
           (kept == 0 || (weight(order_[kept]) >= options.min_p && mass < options.top_p * total)))
      mass += weight(order_[kept++]);
    if (options.top_p == 1 && options.min_p == 0) kept = order_.size();
    order_.resize(kept);
    mass_ = 0;
    for (const int64_t id : order_) mass_ += weight(id);
  }

  const std::vector<int64_t>& order() const { return order_; }
  double share(int64_t id) { return weight(id) / mass_; }
  int64_t draw(uint64_t seen, const RandomKey& key) {
    const auto bits = key.block(seen);
    double place = (bits[0] + bits[1] * 0x1p-32) * 0x1p-32 * mass_;
    for (const int64_t id : order_)
      if ((place -= weight(id)) < 0) return id;
    return order_.back();
  }

 private:
  double& weight(int64_t id) { return p_[static_cast<size_t>(id)]; }
  std::vector<int64_t> order_;
  std::vector<double> p_;
  double mass_ = 0;
};

std::vector<float> some_logits(int64_t n, double spread, uint64_t seed) {
  std::vector<float> logits;
  for (int64_t i = 0; i < n; ++i)
    logits.push_back(static_cast<float>(spread * RandomKey(seed).normal(static_cast<uint64_t>(i))));
  return logits;
}

struct Case {
  double temperature, top_p, min_p;
  int64_t top_k;
};

const Case kCases[] = {{1, 1, 0, 0},     {0.3, 1, 0, 0},     {3, 1, 0, 0},    {1, 0.9, 0, 0},
                       {1, 0.5, 0, 0},   {1.5, 0.999, 0, 0}, {1, 1, 0.1, 0},  {1, 1, 1, 0},
                       {1, 1, 0, 1},     {1, 1, 0, 7},       {1, 1, 0, 500},  {1, 1, 0, 1 << 30},
                       {0.7, 0.8, 0, 6}, {2, 0.95, 0.02, 0}, {1, 0.7, .3, 9}, {100, .5, 0, 0}};

SamplingOptions options_of(const Case& c) {
  return {.temperature = c.temperature, .top_k = c.top_k, .top_p = c.top_p, .min_p = c.min_p};
}

TEST(Sampling, DrawsWhatTheDefinitionDraws) {
  const RandomKey key = RandomKey(5).fold("sampling");
  for (const int64_t n : {1, 2, 23, 1000, 5000})
    for (const double spread : {0.0, 0.01, 1.0, 5.0, 60.0})
      for (const Case& c : kCases) {
        SCOPED_TRACE(fmt::format("n {} spread {} T {} top_p {} min_p {} top_k {}", n, spread,
                                 c.temperature, c.top_p, c.min_p, c.top_k));
        std::vector<float> logits = some_logits(n, spread, static_cast<uint64_t>(n));
        // equal ones, and ones that cannot be
        for (size_t i = 3; i + 1 < logits.size(); i += 5) logits[i + 1] = logits[i];
        for (size_t i = 4; i < logits.size(); i += 11) logits[i] = -INFINITY;
        const SamplingOptions options = options_of(c);
        Definition definition(logits, options);
        for (const size_t seen : {size_t{0}, size_t{1}, size_t{2}, size_t{3}, size_t{40}}) {
          const std::vector<int64_t> before(seen, 0);
          ASSERT_EQ(sample(logits, before, options, key), definition.draw(seen, key)) << seen;
        }
      }
}

TEST(Sampling, FollowsTheProbabilities) {
  const std::vector<float> logits = {0, std::log(2.0F), std::log(5.0F), -INFINITY, NAN};
  std::vector<int64_t> counts(5, 0);
  constexpr int64_t kDraws = 8000;
  std::vector<int64_t> seen;
  for (int64_t i = 0; i < kDraws; ++i, seen.push_back(0))
    ++counts[static_cast<size_t>(sample(logits, seen, {.temperature = 1}, RandomKey(3)))];
  // 4 standard deviations of a share of 1/8, 2/8, 5/8
  EXPECT_NEAR(static_cast<double>(counts[0]), kDraws / 8.0, 4 * std::sqrt(kDraws * 7 / 64.0));
  EXPECT_NEAR(static_cast<double>(counts[1]), kDraws / 4.0, 4 * std::sqrt(kDraws * 12 / 64.0));
  EXPECT_EQ(counts[3] + counts[4], 0);
}

// which tokens stay: transformers 5.23 on float64
TEST(Sampling, KeepsWhatAnotherImplementationKeeps) {
  std::vector<float> z;
  for (int i = 0; i < 12; ++i) z.push_back(static_cast<float>(3 * std::sin(0.7 * i + 0.1)));
  const auto drawn = [&](const SamplingOptions& options) {
    std::set<int64_t> ids;
    std::vector<int64_t> seen;
    for (int64_t i = 0; i < 600; ++i, seen.push_back(0))
      ids.insert(sample(z, seen, options, RandomKey(1)));
    return ids;
  };
  using Ids = std::set<int64_t>;
  EXPECT_EQ(drawn({.temperature = 1, .top_k = 4}), (Ids{2, 3, 10, 11}));
  EXPECT_EQ(drawn({.temperature = 1, .top_p = 0.5}), (Ids{2, 11}));
  EXPECT_EQ(drawn({.temperature = 1, .top_p = 0.9}), (Ids{1, 2, 3, 10, 11}));
  EXPECT_EQ(drawn({.temperature = 1, .min_p = 0.1}), (Ids{1, 2, 3, 4, 10, 11}));
  EXPECT_EQ(drawn({.temperature = 1, .min_p = 0.5}), (Ids{2, 3, 11}));
  EXPECT_EQ(drawn({.temperature = 2, .top_k = 8, .top_p = 0.8, .min_p = 0.45}),
            (Ids{1, 2, 3, 10, 11}));
}

TEST(Sampling, TellsTheProbabilitiesThatItDrawsFrom) {
  for (const SamplingOptions& options : {SamplingOptions{.temperature = 1},
                                         {.temperature = 0.7, .top_k = 9},
                                         {.temperature = 1.3, .top_p = 0.8},
                                         {.temperature = 0.9, .top_k = 40, .min_p = 0.05}}) {
    const std::vector<float> logits = some_logits(300, 4, 5);
    Definition definition(logits, options);
    const size_t kept = definition.order().size();
    for (uint64_t seed = 0; seed < 20; ++seed) {
      PositionLogprobs got;
      const int64_t id = sample(logits, {}, options, RandomKey(seed), 0, nullptr, 400, &got);
      EXPECT_EQ(id, sample(logits, {}, options, RandomKey(seed)));
      EXPECT_EQ(got.chosen.id, id);
      EXPECT_NEAR(std::exp(got.chosen.log_p), definition.share(id), 1e-12) << id;
      ASSERT_EQ(got.top.size(), kept);
      double sum = 0;
      for (size_t i = 0; i < kept; ++i) {
        EXPECT_EQ(got.top[i].id, definition.order()[i]);
        EXPECT_NEAR(std::exp(got.top[i].log_p), definition.share(got.top[i].id), 1e-12);
        sum += std::exp(got.top[i].log_p);
      }
      EXPECT_NEAR(sum, 1, 1e-9);
      sample(logits, {}, options, RandomKey(seed), 0, nullptr, 3, &got);
      EXPECT_EQ(got.top.size(), std::min<size_t>(3, kept));
    }
  }
  // every filter leaves some that sum to 1, the chosen one among them
  for (const SamplingOptions& options :
       {SamplingOptions{.temperature = 1, .typical_p = 0.5},
        {.temperature = 1, .top_n_sigma = 1.5},
        {.temperature = 1, .xtc_probability = 1, .xtc_threshold = 0.05},
        {.temperature = 1,
        .top_k = 30,
        .typical_p = 0.9,
        .xtc_probability = 1,
        .xtc_threshold = 0.05},
        {.temperature = 1, .mirostat = 2, .mirostat_tau = 2}}) {
    const std::vector<float> logits = some_logits(300, 4, 5);
    for (uint64_t seed = 0; seed < 20; ++seed) {
      PositionLogprobs got;
      SamplerMemory memory;
      const int64_t id = sample(logits, {}, options, RandomKey(seed), 0, &memory, 400, &got);
      double sum = 0;
      bool found = false;
      for (const TokenLogprob& c : got.top) {
        sum += std::exp(c.log_p);
        if (c.id != id) continue;
        found = true;
        EXPECT_NEAR(c.log_p, got.chosen.log_p, 1e-12);
      }
      EXPECT_TRUE(found);
      EXPECT_NEAR(sum, 1, 1e-9);
      EXPECT_LT(got.top.size(), 300u);
      EXPECT_EQ(memory.mu.has_value(), options.mirostat != 0);
    }
  }
  // the greedy choice has all of it, and a bias counts
  const std::vector<float> two = {1, 2};
  PositionLogprobs got;
  EXPECT_EQ(sample(two, {}, {.temperature = 0}, RandomKey(1), 0, nullptr, 2, &got), 1);
  EXPECT_EQ(got.chosen.log_p, 0);
  EXPECT_EQ(got.top.size(), 1u);
  sample(two, {}, {.temperature = 1, .logit_bias = {{0, 1}}}, RandomKey(1), 0, nullptr, 0, &got);
  EXPECT_NEAR(got.chosen.log_p, std::log(0.5), 1e-12);
}

TEST(Sampling, TopPOfZeroIsTheMostLikelyToken) {
  const std::vector<float> logits = {1, 3, 3, 2};
  const SamplingOptions options{.temperature = 2, .top_p = 0};
  options.check();
  std::vector<int64_t> seen;
  for (int64_t i = 0; i < 50; ++i, seen.push_back(0))
    EXPECT_EQ(sample(logits, seen, options, RandomKey(1)), 1);
}

// repetition: transformers on float64; frequency and presence: vLLM's definition by numpy
TEST(Sampling, PenalisesAsOtherImplementationsDo) {
  const std::vector<int64_t> seen = {1, 4, 7, 2, /* the answer */ 4, 7, 2, 4, 7};
  const auto at_1_2_4_7 = [&](const SamplingOptions& options) {
    std::vector<float> z;
    for (int i = 0; i < 12; ++i) z.push_back(static_cast<float>(3 * std::sin(0.7 * i + 0.1)));
    apply_penalties(z, seen, 4, options);
    EXPECT_FLOAT_EQ(z[3], static_cast<float>(3 * std::sin(0.7 * 3 + 0.1)));
    return std::vector<float>{z[1], z[2], z[4], z[7]};
  };
  const auto expect = [](const std::vector<float>& got, const std::vector<double>& want) {
    for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(got[i], want[i], 5e-7) << i;
  };
  SamplingOptions options{.repetition_penalty = 1.3};
  expect(at_1_2_4_7(options), {1.65543713, 2.30191151, .55211384, -3.73980467});
  options.frequency_penalty = 0.5;
  options.presence_penalty = 0.2;
  expect(at_1_2_4_7(options), {1.65543713, 1.60191151, -.64788616, -4.93980467});
  options.repeat_last_n = 4;
  expect(at_1_2_4_7(options), {2.15206827, 1.60191151, -.14788616, -4.93980467});
}

std::vector<float> twelve() {
  std::vector<float> z;
  for (int i = 0; i < 12; ++i) z.push_back(static_cast<float>(3 * std::sin(0.7 * i + 0.1)));
  return z;
}

std::set<int64_t> drawn_from(const SamplingOptions& options) {
  std::set<int64_t> ids;
  std::vector<int64_t> seen;
  for (int64_t i = 0; i < 2000; ++i, seen.push_back(0))
    ids.insert(sample(twelve(), seen, options, RandomKey(1)));
  return ids;
}

// which tokens stay: transformers 5.23 on float64 (typical), llama.cpp's definitions by numpy
TEST(Sampling, FurtherFiltersKeepWhatOtherImplementationsKeep) {
  using Ids = std::set<int64_t>;
  EXPECT_EQ(drawn_from({.temperature = 1, .typical_p = 0.2}), (Ids{3, 10}));
  EXPECT_EQ(drawn_from({.temperature = 1, .typical_p = 0.5}), (Ids{1, 2, 3, 10}));
  EXPECT_EQ(drawn_from({.temperature = 1, .typical_p = 0.9}), (Ids{1, 2, 3, 10, 11}));
  // behind top-k, of what that left, and of the temperature's probabilities
  EXPECT_EQ(drawn_from({.temperature = 0.5, .top_k = 6, .typical_p = 0.5}), (Ids{2, 11}));
  EXPECT_EQ(drawn_from({.temperature = 2, .top_k = 9, .typical_p = 0.7}), (Ids{1, 2, 3, 10, 11}));
  // of the logits, whatever the temperature
  EXPECT_EQ(drawn_from({.temperature = 1, .top_n_sigma = 1}), (Ids{1, 2, 3, 10, 11}));
  EXPECT_EQ(drawn_from({.temperature = 3, .top_n_sigma = 1.5}), (Ids{0, 1, 2, 3, 4, 9, 10, 11}));
  EXPECT_EQ(drawn_from({.temperature = 1, .top_k = 3, .top_n_sigma = 1.5}), (Ids{2, 3, 11}));
  EXPECT_EQ(drawn_from({.temperature = 1, .top_n_sigma = -1}).size(), 12U);
  // all that are so likely go, but the least likely of them
  EXPECT_EQ(drawn_from({.temperature = 1, .top_k = 6, .xtc_probability = 1}), (Ids{1, 4}));
  EXPECT_EQ(drawn_from({.temperature = 1, .top_k = 6, .xtc_probability = 1, .xtc_threshold = .2}),
            (Ids{1, 2, 3, 4, 10}));
  EXPECT_EQ(drawn_from({.temperature = 1, .top_k = 6, .xtc_probability = 1, .xtc_threshold = .6}),
            (Ids{1, 2, 3, 4, 10, 11}));
  EXPECT_EQ(drawn_from({.temperature = 1, .typical_p = 0.9, .xtc_probability = 1}), (Ids{1}));
}

// shares of what is left, by numpy: repetition 1.3, T .7, top-k 6, top-p .9, min-p .05, typical .95
TEST(Sampling, FiltersInARowLeaveTheRightShares) {
  const std::vector<int64_t> said = {1, 4, 7, 2, 4, 7, 2, 4, 7};
  const SamplingOptions options{.temperature = 0.7,
                                .top_k = 6,
                                .top_p = 0.9,
                                .min_p = 0.05,
                                .typical_p = 0.95,
                                .repetition_penalty = 1.3};
  constexpr int64_t kDraws = 20000;
  std::map<int64_t, int64_t> counts;
  for (int64_t i = 0; i < kDraws; ++i)
    ++counts[sample(twelve(), said, options, RandomKey(2).fold(static_cast<uint64_t>(i)), 4)];
  const std::map<int64_t, double> want = {
      {2, .17435046}, {3, .20801433}, {10, .14793536}, {11, .46969985}};
  ASSERT_EQ(counts.size(), want.size());
  for (const auto& [id, p] : want)  // 4.5 standard deviations
    EXPECT_NEAR(static_cast<double>(counts[id]) / kDraws, p, 4.5 * std::sqrt(p * (1 - p) / kDraws));
  EXPECT_EQ(sample(twelve(), said, options, RandomKey(7).fold("sampling"), 4), 3);
}

// its chance is drawn apart from the token: as often as asked for
TEST(Sampling, ExcludesTopChoicesByChance) {
  const std::vector<float> logits = {0, std::log(9.0F), -9, std::log(9.0F) - 0.001F};
  int64_t best = 0;
  std::vector<int64_t> seen;
  constexpr int64_t kDraws = 4000;
  for (int64_t i = 0; i < kDraws; ++i, seen.push_back(0))
    best += sample(logits, seen, {.temperature = 1, .xtc_probability = 0.25}, RandomKey(4)) == 1;
  // 9/19 of the draws without, none with
  const double p = 0.75 * 9 / 19;
  EXPECT_NEAR(static_cast<double>(best), kDraws * p, 4.5 * std::sqrt(kDraws * p * (1 - p)));
}

// by numpy, out of every pair of places; the first three: llama.cpp's own figures
TEST(Sampling, HoldsBackRepeats) {
  const auto less = [](std::vector<int64_t> seen, const SamplingOptions& options) {
    std::vector<float> z(12, 100.0F);
    apply_dry(z, seen, options);
    std::map<int64_t, float> out;
    for (size_t i = 0; i < z.size(); ++i)
      if (z[i] != 100) out[static_cast<int64_t>(i)] = 100 - z[i];
    return out;
  };
  using Less = std::map<int64_t, float>;
  const auto expect = [](const Less& got, const Less& want) {
    ASSERT_EQ(got.size(), want.size());
    for (const auto& [id, loss] : want) EXPECT_NEAR(got.at(id), loss, 1e-4) << id;
  };
  const std::vector<int64_t> a = {1, 4, 7, 2, 4, 7, 2, 4, 7}, b = {3, 5, 3, 5, 3, 9, 3, 5, 3, 5, 3};
  expect(less(a, {.dry_multiplier = 0.8}), {{2, 4.2875F}});
  expect(less(a, {.dry_multiplier = 0.8, .dry_penalty_last_n = 5}), {{2, 0.8F}});
  expect(less(a, {.dry_multiplier = 0.8, .dry_breaker_ids = {2}}), {});
  expect(less(b, {.dry_multiplier = 0.5, .dry_base = 2, .dry_allowed_length = 1}),
         {{5, 2}, {9, 8}});
  expect(less(b, {.dry_multiplier = 0.5, .dry_base = 2}), {{5, 1}, {9, 4}});
  expect(less(b, {.dry_multiplier = 0.5, .dry_base = 2, .dry_allowed_length = 3}),
         {{5, 0.5F}, {9, 2}});
  expect(less(b, {.dry_multiplier = 0.5, .dry_base = 2, .dry_breaker_ids = {5}}), {});
  expect(less(std::vector<int64_t>(9, 6), {.dry_multiplier = 1, .dry_base = 1.5}),
         {{6, 11.390625F}});
  expect(less({}, {.dry_multiplier = 1}), {});
  expect(less({3}, {.dry_multiplier = 1, .dry_allowed_length = 0}), {});
  // a long run costs much, and no more than a float holds
  const auto much = less(std::vector<int64_t>(5000, 6), {.dry_multiplier = 1});
  EXPECT_TRUE(std::isfinite(much.at(6)));
  EXPECT_GT(much.at(6), 1e38);
}

// tokens and mu: by numpy, after the paper's algorithm 3
TEST(Sampling, MirostatFollowsItsSurprise) {
  const auto next = [](SamplerMemory& memory, int64_t want, const SamplingOptions& options) {
    // the first place whose draw is the one of the reference
    for (size_t n = 0; n < 5000; ++n) {
      SamplerMemory copy = memory;
      if (sample(twelve(), std::vector<int64_t>(n, 0), options, RandomKey(9), 0, &copy) != want)
        continue;
      memory = copy;
      return *memory.mu;
    }
    return std::nan("");
  };
  SamplerMemory memory;
  SamplingOptions options{.temperature = 1, .mirostat = 2, .mirostat_tau = 2.5};
  EXPECT_NEAR(next(memory, 11, options), 5.0718469135, 1e-7);
  EXPECT_NEAR(next(memory, 3, options), 5.0614398929, 1e-7);
  EXPECT_NEAR(next(memory, 1, options), 5.0115865690, 1e-7);
  memory = {};
  options = {.temperature = 0.8, .mirostat = 2, .mirostat_tau = 1.1, .mirostat_eta = 0.3};
  for (const auto& [id, mu] :
       {std::pair{11, 2.230849923717443}, {2, 2.259998327685622}, {11, 2.290848251403065}})
    EXPECT_NEAR(next(memory, id, options), mu, 1e-7);
  EXPECT_TRUE(std::isnan(next(memory, 1, options)));  // two are left
  // one is left at least
  memory = {};
  options.mirostat_tau = 0.5, options.mirostat_eta = 0.1, options.temperature = 1;
  EXPECT_NEAR(next(memory, 11, options), 1.05, 1e-12);
  EXPECT_TRUE(std::isnan(next(memory, 2, options)));
  // without a memory it begins each time
  EXPECT_EQ(sample(twelve(), {}, options, RandomKey(9)), 11);
}

// which tokens stay: transformers 5.23 on float64, behind top-k numpy
TEST(Sampling, EntropyFiltersKeepWhatAnotherImplementationKeeps) {
  using Ids = std::set<int64_t>;
  EXPECT_EQ(drawn_from({.temperature = 1, .top_h = 0.4}), (Ids{2, 11}));
  EXPECT_EQ(drawn_from({.temperature = 1, .top_h = 0.8}), (Ids{2, 3, 10, 11}));
  EXPECT_EQ(drawn_from({.temperature = 1, .epsilon_cutoff = 0.02}), (Ids{1, 2, 3, 4, 10, 11}));
  EXPECT_EQ(drawn_from({.temperature = 1, .eta_cutoff = 0.05}), (Ids{1, 2, 3, 10, 11}));
  // one is left at least, and all where nothing is asked
  EXPECT_EQ(drawn_from({.temperature = 1, .epsilon_cutoff = 1}), (Ids{11}));
  EXPECT_EQ(drawn_from({.temperature = 1, .top_h = 0.01}), (Ids{11}));
  EXPECT_EQ(drawn_from({.temperature = 1, .top_h = 1}).size(), 12U);
  // of what those before have left
  EXPECT_EQ(drawn_from({.temperature = 1, .top_k = 3, .eta_cutoff = 0.35}), (Ids{2, 3, 11}));
  EXPECT_EQ(drawn_from({.temperature = 1, .top_k = 3, .eta_cutoff = 0.6}), (Ids{2, 11}));
}

// only the best 100 count, however many there are
TEST(Sampling, TopHLooksAtTheBestHundred) {
  std::vector<float> flat(300, 0.0F);
  flat[7] = 0.5F;
  PositionLogprobs got;
  sample(flat, {}, {.temperature = 1, .top_h = 1}, RandomKey(1), 0, nullptr, 400, &got);
  ASSERT_EQ(got.top.size(), 100U);
  EXPECT_EQ(got.top[0].id, 7);
  EXPECT_EQ(got.top[99].id, 99);  // of equals the lowest
}

// lo + (hi - lo) H / ln n = .5 + .6 * 1.7927784139 / ln 12
TEST(Sampling, TheTemperatureFollowsTheEntropy) {
  PositionLogprobs got, want;
  sample(twelve(), {}, {.temperature = 0.8, .dynatemp_range = 0.3}, RandomKey(1), 0, nullptr, 12,
         &got);
  sample(twelve(), {}, {.temperature = 0.9328802647}, RandomKey(1), 0, nullptr, 12, &want);
  ASSERT_EQ(got.top.size(), 12U);
  for (size_t i = 0; i < 12; ++i) {
    EXPECT_EQ(got.top[i].id, want.top[i].id);
    EXPECT_NEAR(got.top[i].log_p, want.top[i].log_p, 1e-6);
  }
  // what cannot be does not count; nothing unsure is left of two of which one is impossible
  const std::vector<float> one = {1, -INFINITY};
  EXPECT_EQ(sample(one, {}, {.temperature = 1, .dynatemp_range = 1}, RandomKey(1)), 0);
  // temperatures down to 0 are the best one
  const std::vector<float> sure = {0, 200, 0};
  for (uint64_t seed = 0; seed < 20; ++seed)
    EXPECT_EQ(sample(sure, {}, {.temperature = 1, .dynatemp_range = 1}, RandomKey(seed)), 1);
}

// transformers on the same prompt and answer
TEST(Sampling, ForbidsWhatWasSaidAndWords) {
  const std::vector<int64_t> seen = {1, 4, 7, 2, 4, 7, 2, 4, 7};
  const auto gone = [&](const auto& change) {
    std::vector<float> z = twelve();
    change(z);
    std::set<int64_t> ids;
    for (size_t i = 0; i < z.size(); ++i)
      if (z[i] == -INFINITY) ids.insert(static_cast<int64_t>(i));
    return ids;
  };
  using Ids = std::set<int64_t>;
  const auto repeats = [&](int64_t size) {
    return gone([&](std::vector<float>& z) { block_ngrams(z, seen, seen, size); });
  };
  EXPECT_EQ(repeats(3), (Ids{2}));
  EXPECT_EQ(repeats(1), (Ids{1, 2, 4, 7}));
  EXPECT_EQ(repeats(9), (Ids{}));
  EXPECT_EQ(repeats(10), (Ids{}));
  EXPECT_EQ(gone([&](std::vector<float>& z) {
              bias_sequences(z, seen,
                             std::vector<std::pair<std::vector<int64_t>, double>>{
                                 {{3}, -INFINITY}, {{4, 7, 9}, -INFINITY}, {{7, 4, 5}, -INFINITY}});
            }),
            (Ids{3, 9}));
  // the best one that is left
  EXPECT_EQ(sample(twelve(), seen, {.sequence_bias = {{{11}, -INFINITY}}}, RandomKey(1)), 2);
  EXPECT_EQ(sample(twelve(), seen,
                   {.no_repeat_ngram_size = 1, .sequence_bias = {{{11}, -INFINITY}}}, RandomKey(1)),
            3);
  EXPECT_EQ(sample(twelve(), seen, {.allowed_ids = std::vector<int64_t>{6, 8, 99}}, RandomKey(1)),
            8);
}

// shares by numpy, in this order and in llama.cpp's
TEST(Sampling, SamplersActInTheOrderThatIsAskedFor) {
  SamplingOptions options{.temperature = 2, .top_k = 8, .top_p = 0.8, .min_p = 0.45};
  const auto expect = [&](const std::map<int64_t, double>& want) {
    PositionLogprobs got;
    sample(twelve(), {}, options, RandomKey(1), 0, nullptr, 12, &got);
    ASSERT_EQ(got.top.size(), want.size()) << to_string(options.samplers);
    // the logits are floats: 3 2^-24 of each
    for (const TokenLogprob& c : got.top)
      EXPECT_NEAR(std::exp(c.log_p), want.at(c.id), 5e-8) << c.id;
  };
  expect({{1, .16100412}, {2, .24509314}, {3, .18459060}, {10, .16383329}, {11, .24547886}});
  const std::vector<std::string> llama_cpp = {
      "penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"};
  options.samplers = samplers_named(llama_cpp);
  expect({{2, .36301350}, {3, .27340170}, {11, .36358480}});
  // what is left out does nothing
  options.samplers = {Sampler::top_k};
  options.top_k = 1, options.temperature = 0;
  expect({{11, 1}});
}

// the order matters for those who change logits as well: by numpy
TEST(Sampling, ChangesBehindFiltersAndTemperatures) {
  const std::vector<int64_t> seen = {11};
  SamplingOptions options{.temperature = 2, .top_k = 2, .presence_penalty = 1};
  const auto shares = [&] {
    PositionLogprobs got;
    sample(twelve(), seen, options, RandomKey(1), 0, nullptr, 12, &got);
    std::map<int64_t, double> out;
    for (const TokenLogprob& c : got.top) out[c.id] = std::exp(c.log_p);
    return out;
  };
  const double z2 = 3 * std::sin(1.5), z11 = 3 * std::sin(7.8), z3 = 3 * std::sin(2.2);
  // 11 has lost its place to 3
  const auto first = shares();
  ASSERT_EQ(first.size(), 2U);
  EXPECT_NEAR(first.at(2), 1 / (1 + std::exp((z3 - z2) / 2)), 1e-7);
  // it has its place, and loses 1 of the logit that the temperature has halved
  options.samplers = {Sampler::temperature, Sampler::top_k, Sampler::penalties};
  const auto last = shares();
  ASSERT_EQ(last.size(), 2U);
  EXPECT_NEAR(last.at(2), 1 / (1 + std::exp((z11 / 2 - 1) - z2 / 2)), 1e-7);
  // greedy behind a filter and a penalty
  options.temperature = 0;
  options.samplers = {Sampler::top_k, Sampler::penalties, Sampler::temperature};
  EXPECT_EQ(shares(), (std::map<int64_t, double>{{2, 1}}));
  // a filter behind another one that leaves no beginning of the order
  options = {.temperature = 1, .top_k = 2, .typical_p = 0.5};
  options.samplers = {Sampler::typical_p, Sampler::top_k};
  std::set<int64_t> left;
  for (const auto& [id, p] : shares()) left.insert(id);
  EXPECT_EQ(left, (std::set<int64_t>{2, 3}));
  options = {.temperature = 1, .top_k = 2, .xtc_probability = 1};
  options.samplers = {Sampler::xtc, Sampler::top_k};
  left.clear();
  for (const auto& [id, p] : shares()) left.insert(id);
  EXPECT_EQ(left, (std::set<int64_t>{1, 4}));
}

TEST(Sampling, NamesSamplers) {
  const std::vector<std::string> all(sampler_names().begin(), sampler_names().end());
  EXPECT_EQ(samplers_named(all), all_samplers());
  EXPECT_EQ(all.size(), static_cast<size_t>(Sampler::xtc) + 1);
  EXPECT_EQ(to_string(samplers_named(std::vector<std::string>{"xtc", "typ_p"})), "xtc,typical_p");
  EXPECT_EQ(to_string(std::vector<Sampler>{}), "");
  const auto refused = [](const std::vector<std::string>& names, const char* what) {
    test::expect_error(ErrorKind::usage, what, [&] { samplers_named(names); });
  };
  refused({"topk"}, "there is no \"topk\"; did you mean top_k?");
  refused({"nothing of the kind"}, "expected some of penalties, no_repeat_ngram, dry");
  refused({"top_k", "xtc", "top_k"}, "top_k comes twice");
  // an option of a sampler that is left out
  const auto conflict = [](const std::string& given) {
    return conflict_among({.samplers = {Sampler::top_k, Sampler::temperature}},
                          [&](const DecodingField& field) { return field.name == given; });
  };
  EXPECT_EQ(conflict("top_p"),
            "top_p without top_p among samplers; leave it out, or name that one too");
  EXPECT_EQ(conflict("xtc_threshold").substr(0, 25), "xtc_threshold without xtc");
  EXPECT_EQ(conflict("top_k"), "");
}

// what a table says of an option is what flags, settings and requests say
TEST(Sampling, TheTableHasEveryOptionOnce) {
  std::set<std::string> names;
  for (const DecodingField& field : sampling_fields()) {
    EXPECT_TRUE(names.insert(field.name).second) << field.name;
    SamplingOptions options, other;
    EXPECT_TRUE(std::isfinite(field.get(options)));
    // it sets its own option and no other
    field.set(other, field.get(options) + 1);
    for (const DecodingField& each : sampling_fields())
      EXPECT_EQ(each.get(other) != each.get(options), &each == &field) << each.name;
    EXPECT_LE(field.asked_least, field.get(options)) << field.name;
    EXPECT_GE(field.asked_most, field.get(options)) << field.name;
    EXPECT_EQ(sampling_field(field.name), &field);
    EXPECT_EQ(sampling_field(field.flag().substr(2)), &field);
    // numbers without a value are refused by name
    for (const double bad : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
      if (field.whole()) continue;
      SamplingOptions spoilt;
      field.set(spoilt, bad);
      test::expect_error(ErrorKind::usage, field.name, [&] { spoilt.check(); });
    }
  }
  EXPECT_EQ(sampling_field("repeat_penalty"), sampling_field("repetition_penalty"));
  EXPECT_EQ(sampling_field("top"), nullptr);
  EXPECT_EQ(sampling_field(""), nullptr);
}

// one list: no name means two options, and a file's key is one that is read
TEST(DecodingFields, EveryNameMeansOneOption) {
  std::set<std::string> names, flags, requests;
  for (const DecodingField& field : decoding_fields()) {
    EXPECT_TRUE(names.insert(field.name).second) << field.name;
    EXPECT_NE(*field.doc, '\0') << field.name;
    EXPECT_NE(field.accepted, 0u) << field.name;
    EXPECT_LE(field.least, field.most) << field.name;
    EXPECT_LE(field.asked_least, field.asked_most) << field.name;
    std::istringstream list(field.flag_names());
    for (std::string flag; std::getline(list, flag, ',');)
      EXPECT_TRUE(flags.insert(flag).second) << flag;
    EXPECT_TRUE(requests.insert(field.request_name()).second) << field.name;
    for (const std::string& alias : field.request_aliases())
      EXPECT_TRUE(requests.insert(alias).second) << alias;
  }
  EXPECT_EQ(decoding_field("max_new_tokens").flag(), "--max-new-tokens");
  EXPECT_EQ(decoding_field("bad_words").flag(), "--bad-word");
  for (const DecodingField& field : decoding_fields()) {
    if (*field.config == '\0') continue;
    const auto keys = convert::generation_keys();
    const auto key = std::find_if(keys.begin(), keys.end(), [&](const convert::GenerationKey& one) {
      return field.config == std::string_view(one.name);
    });
    ASSERT_NE(key, keys.end()) << field.config;
    EXPECT_EQ(key->use, convert::KeyUse::read) << field.config;
  }
}

TEST(Sampling, MirostatStandsInPlaceOfFilters) {
  const auto conflict = [](int64_t mirostat, const std::string& given) {
    return conflict_among({.mirostat = mirostat},
                          [&](const DecodingField& field) { return field.name == given; });
  };
  EXPECT_EQ(conflict(2, "top_p").substr(0, 19), "top_p with mirostat");
  EXPECT_EQ(conflict(0, "top_p"), "");
  EXPECT_EQ(conflict(2, "temperature"), "");
  EXPECT_EQ(conflict(2, "mirostat_tau"), "");
  EXPECT_EQ(conflict_among({.mirostat = 2, .samplers = {Sampler::temperature}},
                           [](const DecodingField&) { return false; })
                .substr(0, 23),
            "samplers with mirostat,");
}

TEST(Sampling, ABiasMovesItsTokenAlone) {
  const std::vector<float> logits = {1, 3, 2.5, 2};
  EXPECT_EQ(sample(logits, {}, {.logit_bias = {{3, 1.25}}}, RandomKey(1)), 3);
  EXPECT_EQ(sample(logits, {}, {.logit_bias = {{1, -INFINITY}}}, RandomKey(1)), 2);
  test::expect_error(ErrorKind::usage, "logit_bias of inf for token 1", [] {
    SamplingOptions{.logit_bias = {{1, INFINITY}}}.check();
  });
}

// ln p and the order, by definition
TEST(PositionLogprobs, AreOfTheLogitsAlone) {
  const std::vector<float> logits = {0, std::log(2.0F), -INFINITY, std::log(5.0F), std::log(2.0F)};
  const PositionLogprobs got = logprobs_of(logits, 0, 3);
  EXPECT_NEAR(got.chosen.log_p, std::log(0.1), 1e-7);
  ASSERT_EQ(got.top.size(), 3U);
  EXPECT_EQ(got.top[0].id, 3);
  EXPECT_EQ(got.top[1].id, 1);
  EXPECT_EQ(got.top[2].id, 4);
  EXPECT_NEAR(got.top[0].log_p, std::log(0.5), 1e-7);
  EXPECT_NEAR(got.top[2].log_p, std::log(0.2), 1e-7);
  EXPECT_EQ(logprobs_of(logits, 2, 99).top.size(), 5U);
  EXPECT_EQ(logprobs_of(logits, 2, 0).chosen.log_p, -INFINITY);
  test::expect_error(ErrorKind::input, "not finite among 2", [] {
    logprobs_of(std::vector<float>{NAN, 1}, 0, 1);
  });
}

TEST(Sampling, RefusesWhatIsOutOfRange) {
  const auto refused = [](SamplingOptions options, const char* what) {
    test::expect_error(ErrorKind::usage, what, [&] { options.check(); });
  };
  refused({.temperature = -1}, "temperature = -1");
  refused({.top_k = -1}, "top_k = -1");
  refused({.top_p = -0.1}, "top_p = -0.1");
  refused({.top_p = 1.1}, "top_p = 1.1");
  refused({.min_p = 2}, "min_p = 2");
  refused({.repetition_penalty = 0}, "repetition_penalty = 0");
  refused({.typical_p = 1.5}, "typical_p = 1.5; expected 0 to 1");
  refused({.top_n_sigma = -2}, "top_n_sigma = -2");
  refused({.xtc_probability = -0.5}, "xtc_probability = -0.5");
  refused({.dry_base = 0.5}, "dry_base = 0.5; expected 1 or more");
  refused({.dry_allowed_length = -1}, "dry_allowed_length = -1");
  refused({.mirostat = 1}, "mirostat = 1; expected 0 (off) or 2");
  refused({.mirostat = 3}, "mirostat = 3; expected 0 (off) or 2");
}

TEST(Sampling, NamesLogitsOfWhichNoneIsFinite) {
  const std::vector<float> logits = {NAN, -INFINITY};
  test::expect_error(ErrorKind::input, "no finite logit among 2",
                     [&] { sample(logits, {}, {}, RandomKey(1)); });
}

TEST(Sampling, WhenTheMostLikelyTokenIsChosen) {
  const SamplingOptions greedy{.temperature = 0};
  EXPECT_TRUE(takes_most_likely(greedy));
  EXPECT_TRUE(takes_most_likely({.temperature = 0, .top_k = 3, .top_p = 0.5, .min_p = 0.1}));
  EXPECT_FALSE(takes_most_likely({.temperature = 0.5}));
  EXPECT_FALSE(takes_most_likely({.temperature = 0, .repetition_penalty = 1.1}));
  EXPECT_FALSE(takes_most_likely({.temperature = 0, .logit_bias = {{1, 2.0}}}));
  EXPECT_FALSE(takes_most_likely({.temperature = 0, .no_repeat_ngram_size = 2}));
  SamplingOptions first_drops = greedy;
  first_drops.samplers = {Sampler::xtc, Sampler::temperature};
  first_drops.xtc_probability = 1;
  first_drops.xtc_threshold = 0.1;
  EXPECT_FALSE(takes_most_likely(first_drops));
  std::swap(first_drops.samplers[0], first_drops.samplers[1]);
  EXPECT_TRUE(takes_most_likely(first_drops));
}

}  // namespace
}  // namespace tessera::infer::sampling_test
