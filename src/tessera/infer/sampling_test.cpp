#include "tessera/infer/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "tessera/base/testing.h"
#include "tessera/infer/chances.h"

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
    adjust(z, seen, 4, options);
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

TEST(Sampling, ABiasMovesItsTokenAlone) {
  const std::vector<float> logits = {1, 3, 2.5, 2};
  EXPECT_EQ(sample(logits, {}, {.logit_bias = {{3, 1.25}}}, RandomKey(1)), 3);
  EXPECT_EQ(sample(logits, {}, {.logit_bias = {{1, -INFINITY}}}, RandomKey(1)), 2);
  test::expect_error(ErrorKind::usage, "logit_bias of inf for token 1", [] {
    SamplingOptions{.logit_bias = {{1, INFINITY}}}.check();
  });
}

// ln p and the order, by definition
TEST(Chances, AreOfTheLogitsAlone) {
  const std::vector<float> logits = {0, std::log(2.0F), -INFINITY, std::log(5.0F), std::log(2.0F)};
  const Chances got = chances_of(logits, 0, 3);
  EXPECT_NEAR(got.chosen.log_p, std::log(0.1), 1e-7);
  ASSERT_EQ(got.top.size(), 3U);
  EXPECT_EQ(got.top[0].id, 3);
  EXPECT_EQ(got.top[1].id, 1);
  EXPECT_EQ(got.top[2].id, 4);
  EXPECT_NEAR(got.top[0].log_p, std::log(0.5), 1e-7);
  EXPECT_NEAR(got.top[2].log_p, std::log(0.2), 1e-7);
  EXPECT_EQ(chances_of(logits, 2, 99).top.size(), 5U);
  EXPECT_EQ(chances_of(logits, 2, 0).chosen.log_p, -INFINITY);
  test::expect_error(ErrorKind::input, "not finite among 2", [] {
    chances_of(std::vector<float>{NAN, 1}, 0, 1);
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
}

TEST(Sampling, NamesLogitsOfWhichNoneIsFinite) {
  const std::vector<float> logits = {NAN, -INFINITY};
  test::expect_error(ErrorKind::input, "no finite logit among 2",
                     [&] { sample(logits, {}, {}, RandomKey(1)); });
}

}  // namespace
}  // namespace tessera::infer::sampling_test
