// ALiBi, T5 and KERPLE: biases that depend on the distance alone.
#include <gtest/gtest.h>

#include "tessera/nn/position/alibi.h"
#include "tessera/nn/position/position_testing.h"
#include "tessera/nn/position/t5.h"

namespace tessera::nn::distance_bias_test {
namespace {

constexpr double kTau = 0.5;

TEST(Alibi, GoldenSlopes) {
  const std::map<int64_t, std::vector<double>> wants = {
      {1, {0.00390625}},
      {2, {0.0625, 0.00390625}},
      {4, {0.25, 0.0625, 0.015625, 0.00390625}},
      {6, {0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125}},
      {8, {0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625}},
      {12,
       {0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625, 0.7071067812,
        0.3535533906, 0.1767766953, 0.08838834765}},
      {16,
       {0.7071067812, 0.5, 0.3535533906, 0.25, 0.1767766953, 0.125, 0.08838834765, 0.0625,
        0.04419417382, 0.03125, 0.02209708691, 0.015625, 0.01104854346, 0.0078125, 0.005524271728,
        0.00390625}}};
  const auto expect_slopes = [](int64_t n, const std::vector<double>& want) {
    const auto got = AlibiConfig().slopes(n);
    ops::expect_near(ops::tensor(got.past), ops::tensor(want), 1e-10);
    EXPECT_EQ(got.past, got.future);
  };
  for (const auto& [n, want] : wants) expect_slopes(n, want);
  std::vector<double> twenty = wants.at(16);
  twenty.insert(twenty.end(), {0.8408964153, 0.5946035575, 0.4204482076, 0.2973017788});
  expect_slopes(20, twenty);
}

TEST(Alibi, OtherLargestExponents) {
  AlibiConfig config;
  config.bias_max = 4;
  ops::expect_near(ops::tensor(config.slopes(4).past), ops::tensor({0.5, 0.25, 0.125, 0.0625}), 0);
}

TEST(Alibi, SlopesOfFalconAreRoundedToBfloat16) {
  AlibiConfig config;
  config.scaled = true;
  // 0.70710678 lies between 0.70703125 and 0.7109375, neighbours in bfloat16
  EXPECT_EQ(config.slopes(16).past[0], 0.70703125);
}

TEST(Alibi, PenalisesTheDistanceInBothDirections) {
  const Heads in = gen_heads(6, 7, 4);
  const std::vector<double> mu = {0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125};
  for (const bool causal : {true, false})
    expect_by_hand(Scheme("alibi", {}, 6, 4, causal), in, kTau, causal,
                   [&](int64_t h, int64_t i, int64_t j) {
                     return -mu[static_cast<size_t>(h)] * static_cast<double>(std::abs(i - j));
                   });
}

TEST(Alibi, AsymmetricSlopesTellTheSidesApart) {
  const Heads in = gen_heads(2, 5, 4);
  // of the four slopes 1/4, 1/16, 1/64, 1/256
  const double past[] = {0.25, 0.015625}, future[] = {0.0625, 0.00390625};
  const spec::Json json = {{"type", "alibi"}, {"sides", "asymmetric"}};
  expect_by_hand(Scheme(json, {}, 2, 4, false), in, kTau, false,
                 [&](int64_t h, int64_t i, int64_t j) {
                   return j <= i ? -past[h] * static_cast<double>(i - j)
                                 : -future[h] * static_cast<double>(j - i);
                 });
}

TEST(Alibi, FalconScalesTheBiasLikeTheScores) {
  const Heads in = gen_heads(2, 5, 4);
  const double mu[] = {0.0625, 0.00390625};
  const spec::Json json = {{"type", "alibi"}, {"scaled", true}};
  expect_by_hand(
      Scheme(json, {}, 2, 4, true), in, kTau, true,
      [&](int64_t h, int64_t i, int64_t j) { return -kTau * mu[h] * static_cast<double>(i - j); });
}

TEST(T5, GoldenBuckets) {
  const T5Config config;
  const std::vector<int64_t> causal = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9, 10,
                                       11, 12, 13, 14, 15, 16, 16, 16, 17, 17};
  const std::vector<int64_t> past = {0, 1, 2, 3, 4, 5,  6,  7,  8,  8, 8,
                                     8, 9, 9, 9, 9, 10, 10, 10, 10, 10};
  const std::vector<int64_t> future = {0,  17, 18, 19, 20, 21, 22, 23, 24, 24, 24,
                                       24, 25, 25, 25, 25, 26, 26, 26, 26, 26};
  for (int64_t d = 0; d <= 20; ++d) {
    EXPECT_EQ(config.bucket(-d, true), causal[static_cast<size_t>(d)]) << d;
    EXPECT_EQ(config.bucket(-d, false), past[static_cast<size_t>(d)]) << d;
    EXPECT_EQ(config.bucket(d, false), future[static_cast<size_t>(d)]) << d;
    EXPECT_EQ(config.bucket(d, true), 0) << d;
  }
}

TEST(T5, GoldenFirstDistanceOfEveryBucket) {
  const T5Config config;
  const std::pair<int64_t, int64_t> causal[] = {
      {15, 15}, {16, 16}, {17, 19}, {18, 21}, {19, 24}, {20, 27}, {21, 31}, {22, 35}, {23, 40},
      {24, 46}, {25, 52}, {26, 59}, {27, 67}, {28, 77}, {29, 87}, {30, 99}, {31, 113}};
  for (const auto& [bucket, first] : causal) {
    EXPECT_EQ(config.bucket(-first, true), bucket);
    EXPECT_EQ(config.bucket(1 - first, true), bucket - 1);
  }
  const std::pair<int64_t, int64_t> both[] = {{7, 7},   {8, 8},   {9, 12},  {10, 16}, {11, 23},
                                              {12, 32}, {13, 46}, {14, 64}, {15, 91}};
  for (const auto& [bucket, first] : both) {
    EXPECT_EQ(config.bucket(-first, false), bucket);
    EXPECT_EQ(config.bucket(1 - first, false), bucket - 1);
    EXPECT_EQ(config.bucket(first, false), bucket + 16);
  }
  EXPECT_EQ(config.bucket(-100'000, true), 31);
  EXPECT_EQ(config.bucket(-100'000, false), 15);
}

TEST(T5, AddsTheBiasOfTheBucket) {
  const Heads in = gen_heads(2, 40, 4);
  const Tensor table = ops::gen({8, 2}, 0.9, 0.4);
  T5Config config;
  config.n_buckets = 8;
  config.max_distance = 16;
  const spec::Json json = {{"type", "t5"}, {"n_buckets", 8}, {"max_distance", 16}};
  for (const bool causal : {true, false})
    expect_by_hand(Scheme(json, {{"weight", table}}, 2, 4, causal), in, 1, causal,
                   [&](int64_t h, int64_t i, int64_t j) {
                     return table[config.bucket(j - i, causal)][h].item<double>();
                   });
}

TEST(T5, OneTableServesAllLayersThatShareIt) {
  const Heads in = gen_heads(2, 5, 4);
  const Tensor table = ops::gen({32, 2}, 0.9, 0.4);
  const Scheme own("t5", {{"weight", table}}, 2, 4, true);
  const Scheme shared(spec::Json{{"type", "t5"}, {"share", "decoder"}},
                      {{"shared.decoder.weight", table}}, 2, 4, true);
  ops::expect_near(shared.attend(in, 1, at::kDouble), own.attend(in, 1, at::kDouble), 0);
}

TEST(Kerple, GoldenLogarithm) {
  const Scheme scheme("kerple", {{"r1", ops::tensor({0.5})}, {"r2", ops::tensor({0.3})}}, 1, 4,
                      true);
  const Heads in = gen_heads(1, 3, 4);
  ops::expect_both([&](at::ScalarType type) { return scheme.added(in, 1, type)[0][2]; },
                   ops::tensor({-0.2350018146, -0.1311821322, 0}), 1e-10);
}

TEST(Kerple, IsItsFormulaInBothDirections) {
  const Heads in = gen_heads(2, 9, 4);
  const double first[] = {0.7, 0.001}, second[] = {1.7, 2.5};  // two of them out of their limits
  for (const bool causal : {true, false}) {
    expect_by_hand(
        Scheme("kerple", {{"r1", ops::tensor({0.7, 0.001})}, {"r2", ops::tensor({1.7, 2.5})}}, 2, 4,
               causal),
        in, kTau, causal, [&](int64_t h, int64_t i, int64_t j) {
          return -std::max(0.01, first[h]) *
                 std::log(1 + second[h] * static_cast<double>(std::abs(i - j)));
        });
    expect_by_hand(
        Scheme(spec::Json{{"type", "kerple"}, {"kernel", "power"}},
               {{"a", ops::tensor({0.7, 0.001})}, {"p", ops::tensor({1.7, 2.5})}}, 2, 4, causal),
        in, kTau, causal, [&](int64_t h, int64_t i, int64_t j) {
          return -std::max(0.01, first[h]) *
                 std::pow(static_cast<double>(std::abs(i - j)), std::min(2.0, second[h]));
        });
  }
}

TEST(Kerple, PowerOneIsAlibi) {
  const Heads in = gen_heads(2, 6, 4);
  const Scheme power(spec::Json{{"type", "kerple"}, {"kernel", "power"}},
                     {{"a", ops::tensor({0.0625, 1})}, {"p", ops::tensor({1, 1})}}, 2, 4, false);
  const Scheme alibi("alibi", {}, 2, 4, false);
  ops::expect_near(power.added(in, 1, at::kDouble)[0], alibi.added(in, 1, at::kDouble)[0], 1e-14);
}

TEST(DistanceBias, OnlyDistancesMatter) {
  // the same content three positions later
  const Heads in = gen_heads(2, 9, 4);
  const Scheme schemes[] = {
      Scheme("alibi", {}, 2, 4, false),
      Scheme("t5", {{"weight", ops::gen({32, 2}, 0.9, 0.4)}}, 2, 4, false),
      Scheme("kerple", {{"r1", ops::tensor({0.5, 1})}, {"r2", ops::tensor({0.3, 2})}}, 2, 4,
             false)};
  for (const Scheme& scheme : schemes) {
    const Tensor all = scheme.added(in, kTau, at::kDouble);
    ops::expect_near(all.narrow(1, 3, 6).narrow(2, 3, 6), all.narrow(1, 0, 6).narrow(2, 0, 6),
                     1e-12);
  }
}

}  // namespace
}  // namespace tessera::nn::distance_bias_test
