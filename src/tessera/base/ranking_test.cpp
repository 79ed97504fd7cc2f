#include "tessera/base/ranking.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

namespace tessera::ranking_test {
namespace {

TEST(Ranking, LargestFirstNanLastThenByPlace) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const std::vector<double> scores = {NAN, 1, -kInf, 3, NAN, 1, kInf, -NAN, 0};
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::partial_sort(order.begin(), order.end(), order.end(),
                    [&](size_t a, size_t b) { return ranks_before(scores[a], a, scores[b], b); });
  EXPECT_EQ(order, (std::vector<size_t>{6, 3, 1, 5, 8, 2, 0, 4, 7}));
}

TEST(Ranking, IsAStrictWeakOrdering) {
  const std::vector<float> scores = {NAN, 1, 2, NAN, 1, -1};
  const auto before = [&](size_t a, size_t b) { return ranks_before(scores[a], a, scores[b], b); };
  for (size_t a = 0; a < scores.size(); ++a)
    for (size_t b = 0; b < scores.size(); ++b) {
      EXPECT_EQ(before(a, b) || before(b, a), a != b);
      EXPECT_FALSE(before(a, b) && before(b, a));
      for (size_t c = 0; c < scores.size(); ++c)
        if (before(a, b) && before(b, c)) {
          EXPECT_TRUE(before(a, c));
        }
    }
}

}  // namespace
}  // namespace tessera::ranking_test
