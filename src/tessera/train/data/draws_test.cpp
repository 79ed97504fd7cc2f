#include "tessera/train/data/draws.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

namespace tessera::train::draws_test {
namespace {

TEST(Draws, OrdersHoldEveryNumberOnce) {
  for (const int64_t n : {0, 1, 2, 7, 64, 1000}) {
    std::vector<int64_t> order = shuffled(RandomKey(5), n), all(static_cast<size_t>(n));
    std::iota(all.begin(), all.end(), int64_t{0});
    if (n > 7) {
      EXPECT_NE(order, all);
    }
    std::sort(order.begin(), order.end());
    EXPECT_EQ(order, all);
  }
  EXPECT_EQ(shuffled(RandomKey(5), 9, 4), shuffled(RandomKey(5), 9, 4));
  EXPECT_NE(shuffled(RandomKey(5), 9, 4), shuffled(RandomKey(6), 9, 4));
}

TEST(Draws, EveryChoiceIsAsLikely) {
  // 10 pairs of 5
  std::map<std::vector<int64_t>, int> seen;
  for (uint64_t i = 0; i < 10000; ++i) ++seen[choice(RandomKey(1).fold(i), 5, 2)];
  EXPECT_EQ(seen.size(), 10u);
  for (const auto& [pair, times] : seen) {
    EXPECT_LT(pair[0], pair[1]);
    EXPECT_NEAR(times, 1000, 150);  // five standard errors
  }
}

TEST(Draws, PoissonInvertsItsDistribution) {
  // e^-3 = 0.049787, and 4 e^-3 = 0.199148, 8.5 e^-3 = 0.423190 up to 1 and 2
  EXPECT_EQ(poisson(3, 0), 0);
  EXPECT_EQ(poisson(3, 0.0497), 0);
  EXPECT_EQ(poisson(3, 0.0498), 1);
  EXPECT_EQ(poisson(3, 0.1991), 1);
  EXPECT_EQ(poisson(3, 0.1992), 2);
  EXPECT_EQ(poisson(3, 0.4232), 3);
  double sum = 0;
  for (uint64_t i = 0; i < 10000; ++i)
    sum += static_cast<double>(poisson(3, unit(RandomKey(2), i)));
  EXPECT_NEAR(sum / 10000, 3, 5 * std::sqrt(3.0 / 10000));
  EXPECT_LT(poisson(3, 1 - 0x1p-32), 40);
}

}  // namespace
}  // namespace tessera::train::draws_test
