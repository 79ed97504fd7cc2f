#include "tessera/train/study/rate_search.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "tessera/base/testing.h"

namespace tessera::train {
namespace {

using test::expect_error;

RateSearch searched(std::vector<double> rates, const std::function<double(RateTrial)>& loss) {
  RateSearch search(std::move(rates));
  while (const auto trial = search.next()) search.add(loss(*trial));
  return search;
}

/// Least at `best`, on a logarithmic axis.
std::function<double(RateTrial)> valley(double best) {
  return [best](RateTrial trial) { return std::fabs(std::log2(trial.rate / best)); };
}

TEST(RateSearch, HalvesTwiceAndCostsTwoAndAHalfBudgets) {
  const RateSearch search = searched(rates_around(8e-3), valley(2e-3));
  EXPECT_EQ(rates_around(8e-3), (std::vector<double>{1e-3, 2e-3, 4e-3, 8e-3, 16e-3, 32e-3}));
  EXPECT_EQ(search.best(), 2e-3);
  EXPECT_FALSE(search.at_end());
  std::vector<std::pair<double, double>> made;  // fraction, rate
  double cost = 0;
  for (const RateTrial& trial : search.trials()) {
    made.emplace_back(trial.fraction, trial.rate);
    cost += trial.fraction;
  }
  const std::vector<std::pair<double, double>> expected{
      {.125, 1e-3}, {.125, 2e-3}, {.125, 4e-3}, {.125, 8e-3}, {.125, 16e-3}, {.125, 32e-3},
      {.25, 2e-3},  {.25, 1e-3},  {.25, 4e-3},  {.5, 2e-3},   {.5, 1e-3}};
  EXPECT_EQ(made, expected);
  EXPECT_EQ(cost, 2.5);
  EXPECT_EQ(cost_of_search(6).budgets, 2.5);
  EXPECT_EQ(cost_of_search(6).runs, 6 + 3 + 2);
  EXPECT_EQ(cost_of_search(3).budgets, 3. / 8 + 2. / 4 + 2. / 2);
  EXPECT_EQ(cost_of_search(1).budgets, 7. / 8);
}

TEST(RateSearch, TheLongestTrainingsDecide) {
  // 4 is ahead at first, 2 at the end
  const RateSearch search = searched({1, 2, 4, 8}, [](RateTrial trial) {
    return trial.fraction < .5 ? std::fabs(std::log2(trial.rate / 4)) : trial.rate;
  });
  EXPECT_EQ(search.best(), 2);
}

TEST(RateSearch, AnEndIsExtendedTwiceThenFlagged) {
  const RateSearch once = searched({1, 2, 4}, valley(0.5));
  EXPECT_EQ(once.best(), 0.5);
  EXPECT_FALSE(once.at_end());  // 0.25 was tried, too
  const RateSearch far = searched({1, 2, 4}, valley(1e3));
  EXPECT_EQ(far.best(), 16);
  EXPECT_TRUE(far.at_end());
  size_t first_round = 0;
  for (const RateTrial& trial : far.trials()) first_round += trial.fraction == .125 ? 1 : 0;
  EXPECT_EQ(first_round, 5u);
}

TEST(RateSearch, DivergedRunsLose) {
  const RateSearch search = searched(
      {1, 2, 4, 8}, [](RateTrial trial) { return trial.rate > 2 ? NAN : 10 - trial.rate; });
  EXPECT_EQ(search.best(), 2);
  EXPECT_FALSE(search.at_end());
  const RateSearch none = searched({1, 2, 4}, [](RateTrial) { return INFINITY; });
  EXPECT_TRUE(std::isinf(none.trials().back().loss));
}

TEST(RateSearch, RefusesBadRates) {
  expect_error(ErrorKind::usage, "no learning rates", [] { RateSearch({}); });
  expect_error(ErrorKind::usage, "learning rate 0.1 twice", [] { RateSearch({.1, .2, .1}); });
  expect_error(ErrorKind::usage, "learning rate 0; expected", [] { RateSearch({0, .1}); });
}

}  // namespace
}  // namespace tessera::train
