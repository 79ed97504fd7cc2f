#include "tessera/infer/speculation/draft_length.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tessera::infer::draft_length_test {
namespace {

TEST(LinearCostModel, IsTheLineThroughWhatWasMeasured) {
  LinearCostModel line;
  EXPECT_EQ(line.at(3), 0);
  line.add(2, 0.5);
  EXPECT_FALSE(line.known());
  EXPECT_DOUBLE_EQ(line.at(2), 0.5);
  EXPECT_DOUBLE_EQ(line.at(4), 1.0);  // in proportion, until two sizes are known
  line.add(6, 0.7);
  EXPECT_TRUE(line.known());
  EXPECT_NEAR(line.at(4), 0.6, 1e-12);
  EXPECT_NEAR(line.at(10), 0.9, 1e-12);
  // more never costs less
  LinearCostModel falls;
  falls.add(1, 0.5);
  falls.add(3, 0.3);
  EXPECT_NEAR(falls.at(3), falls.at(1), 1e-12);
}

/// A model whose calls take `base` + `slope` a token, whose guesses take `each`, and a text in
/// which a guess is right with `chance`.
struct World {
  double base, slope, each, chance;
};

/// What is asked for in the end, after so many steps of that.
int64_t settles_at(DraftLengthController& pace,
                   const World& world,
                   int64_t steps,
                   int64_t rows = 1) {
  int64_t last = 0;
  double debt = 0;
  for (int64_t step = 0; step < steps; ++step) {
    const int64_t n = pace.next(rows);
    if (n > 0 || step + 1 == steps) last = n;
    pace.called(rows * (n + 1), world.base + world.slope * static_cast<double>(rows * (n + 1)));
    if (n == 0) continue;
    pace.drafted(rows * n, world.each * static_cast<double>(rows * n));
    // right ones in the share that is asked for, without chance
    int64_t right = 0;
    while (right < n) {
      debt += world.chance;
      if (debt < 1) break;
      debt -= 1;
      ++right;
    }
    pace.settled(n, right);
  }
  return last;
}

// the n with the largest (1 - a^(n+1)) / (1 - a) / (base + slope (n + 1) + each n), by hand:
// a .9: n 1 1.9/.0105, ..., 8 6.13/.014
TEST(DraftLengthController, TakesAsManyAsPay) {
  DraftLengthController many(8);
  EXPECT_EQ(settles_at(many, {.base = 0.01, .slope = 0, .each = 0, .chance = 0.95}, 300), 8);
  EXPECT_NEAR(many.acceptance(), 0.95, 0.05);
  // guesses as dear as the model: none pays
  DraftLengthController none(8);
  settles_at(none, {.base = 0.01, .slope = 0, .each = 0.02, .chance = 0.9}, 300);
  int64_t asked = 0;
  for (int i = 0; i < 16; ++i) asked += none.next(1) > 0 ? 1 : 0;
  EXPECT_LE(asked, 1);
  // wrong ones, and a call that grows with its tokens: none pays either
  DraftLengthController wrong(8);
  settles_at(wrong, {.base = 0.002, .slope = 0.008, .each = 0, .chance = 0.1}, 300);
  asked = 0;
  for (int i = 0; i < 16; ++i) asked += wrong.next(1) > 0 ? 1 : 0;
  EXPECT_LE(asked, 1);
}

// recorded: SmolLM2-135M on two cores, seconds of a call with 1 and 5 tokens; guesses of 1 ms.
// a = .7, t(n) = .0100 + .0012 n + .001 n: tokens / s at n = 0 .. 5: 100, 139.3, 151.6, 152.6,
// 147.4, 140.0
TEST(DraftLengthController, SpeedIsThatOfTheFormula) {
  DraftLengthController pace(8);
  for (int i = 0; i < 20; ++i) {
    pace.called(1, 0.0100);
    pace.called(5, 0.0148);
    pace.drafted(4, 0.004);
    pace.drafted(2, 0.002);
  }
  // 7 right of every 10 tried, until the belief of the beginning has faded to nothing
  for (int i = 0; i < 4000; ++i) pace.settled(1, i % 10 < 7 ? 1 : 0);
  EXPECT_NEAR(pace.acceptance(), 0.7, 0.04);
  const double a = pace.acceptance();
  for (const int64_t n : {0, 1, 2, 3, 5}) {
    const double tokens = (1 - std::pow(a, static_cast<double>(n) + 1)) / (1 - a);
    const double seconds =
        0.0100 + 0.0012 * static_cast<double>(n) + 0.001 * static_cast<double>(n);
    EXPECT_NEAR(pace.speed(1, n), tokens / seconds, 1e-6 * tokens / seconds) << n;
  }
  for (int i = 0; i < 8; ++i) pace.next(1);
  const int64_t n = pace.next(1);
  EXPECT_GE(n, 2);
  EXPECT_LE(n, 3);
  // many rows make a call dear: fewer guesses
  EXPECT_LT(pace.next(64), n + 1);
}

// candidates that nobody had are not paid for
TEST(DraftLengthController, CountsWhatIsVerified) {
  DraftLengthController chain(4), tree(4, 3), thin(4, 3);
  for (DraftLengthController* pace : {&chain, &tree, &thin}) {
    pace->called(1, 0.010);
    pace->called(5, 0.018);
  }
  chain.settled(4, 2);
  tree.settled(4, 2, 12);
  thin.settled(4, 2, 4);
  EXPECT_EQ(thin.speed(1, 2), chain.speed(1, 2));
  // 7 tokens a call in place of 3: .022 s in place of .014 s
  EXPECT_NEAR(tree.speed(1, 2) / chain.speed(1, 2), 0.014 / 0.022, 1e-9);
}

// the same numbers, the same answers; and a text that becomes easy is noticed
TEST(DraftLengthController, FollowsWhatItIsToldAlone) {
  const World hard{.base = 0.004, .slope = 0.006, .each = 0.001, .chance = 0.05},
      easy{.base = 0.009, .slope = 0.001, .each = 0.0005, .chance = 0.95};
  DraftLengthController a(6), b(6);
  settles_at(a, hard, 200);
  settles_at(b, hard, 200);
  for (int i = 0; i < 40; ++i) EXPECT_EQ(a.next(1), b.next(1)) << i;
  EXPECT_GE(settles_at(a, easy, 600), 4);
}

// the first steps tell both costs
TEST(DraftLengthController, TriesBothAtFirst) {
  DraftLengthController pace(5);
  int64_t with = 0, without = 0;
  for (int i = 0; i < 8; ++i) ++(pace.next(1) == 5 ? with : without);
  EXPECT_EQ(with, 4);
  EXPECT_EQ(without, 4);
}

}  // namespace
}  // namespace tessera::infer::draft_length_test
