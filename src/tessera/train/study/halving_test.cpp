#include "tessera/train/study/halving.h"

#include <cmath>

#include "tessera/train/train_testing.h"

namespace tessera::train {
namespace {

TEST(LayoutSearchHalving, TheBetterHalfTrainsForTwiceAsLong) {
  Halving search(8);
  std::vector<std::pair<size_t, double>> trained;
  // candidate 6 is the best, 1 diverges
  const auto loss = [](size_t candidate) {
    return candidate == 1 ? NAN : std::fabs(static_cast<double>(candidate) - 6.1);
  };
  while (const auto trial = search.next()) {
    trained.emplace_back(trial->candidate, trial->fraction);
    search.add(loss(trial->candidate));
  }
  const std::vector<std::pair<size_t, double>> expected{
      {0, .25}, {1, .25}, {2, .25}, {3, .25}, {4, .25}, {5, .25}, {6, .25},
      {7, .25}, {6, .5},  {7, .5},  {5, .5},  {4, .5},  {6, 1},   {7, 1}};
  EXPECT_EQ(trained, expected);
  std::vector<size_t> order;
  for (const HalvingTrial& one : search.ranking()) order.push_back(one.candidate);
  EXPECT_EQ(order, (std::vector<size_t>{6, 7, 5, 4, 3, 2, 0, 1}));
  EXPECT_EQ(cost_of_halving(8), 6);
}

TEST(LayoutSearchHalving, OfTwoAndThree) {
  Halving two(2);
  EXPECT_EQ(two.next()->fraction, 1);
  EXPECT_EQ(cost_of_halving(2), 2);
  Halving three(3);
  EXPECT_EQ(three.next()->fraction, .5);
  EXPECT_EQ(cost_of_halving(3), 3.5);
  expect_error(ErrorKind::usage, "1 candidates; expected two or more", [] { Halving(1); });
}

TEST(LayoutSearchHalving, TheCostIsThatOfTheTrials) {
  for (size_t n = 2; n < 20; ++n) {
    Halving search(n);
    double cost = 0;
    while (const auto trial = search.next()) {
      cost += trial->fraction;
      search.add(static_cast<double>(trial->candidate));
    }
    EXPECT_DOUBLE_EQ(cost, cost_of_halving(n)) << n;
    EXPECT_EQ(search.ranking().size(), n);
    EXPECT_EQ(search.ranking().front().candidate, 0u);
  }
}

}  // namespace
}  // namespace tessera::train
