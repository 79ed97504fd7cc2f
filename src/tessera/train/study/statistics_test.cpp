#include "tessera/train/study/statistics.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tessera::train {
namespace {

// numbers of scipy 1.17.1: stats.t.ppf, stats.t.sf, stats.ttest_1samp(...).confidence_interval()
TEST(Statistics, StudentsTIsThatOfScipy) {
  const std::pair<double, double> quantiles[] = {{1, 12.706204736174694},  {2, 4.302652729749462},
                                                 {3, 3.1824463052837078},  {4, 2.7764451051977934},
                                                 {9, 2.262157162798205},   {30, 2.0422724563012378},
                                                 {200, 1.9718962236339088}};
  for (const auto& [degrees, quantile] : quantiles) {
    EXPECT_NEAR(student_t_quantile(0.975, degrees), quantile, 1e-11 * quantile) << degrees;
    EXPECT_NEAR(student_t_quantile(0.025, degrees), -quantile, 1e-11 * quantile) << degrees;
  }
  struct Tail {
    double t, degrees, two_sided;
  };
  for (const auto& [t, degrees, two_sided] :
       {Tail{2, 2, 0.18350341907227397}, Tail{5.2, 3, 0.013818586905132097},
        Tail{0.3, 9, 0.7709907037415248}, Tail{12, 1, 0.052929352119179755},
        Tail{40, 4, 2.3340163226012678e-06}})
    EXPECT_NEAR(2 * student_t_cdf(-t, degrees), two_sided, 1e-12) << t;
  EXPECT_EQ(student_t_quantile(0.5, 3), 0);
  EXPECT_NEAR(student_t_cdf(1.5, 5) + student_t_cdf(-1.5, 5), 1, 1e-15);
}

TEST(Statistics, IntervalsOfPairsAreThoseOfScipy) {
  // the first also stands in the specification of `compare`, 4.3
  const PairedDifference clear =
      paired_difference({2.012, 1.507, 1.815, 1.604}, {2.0, 1.5, 1.8, 1.6});
  EXPECT_EQ(clear.pairs, 4);
  EXPECT_NEAR(clear.mean, 0.0095, 1e-12);
  EXPECT_NEAR(clear.interval->first, 0.0016506825802121722, 1e-10);
  EXPECT_NEAR(clear.interval->second, 0.017349317419787832, 1e-10);
  EXPECT_NEAR(*clear.p, 0.03090483504131301, 1e-8);
  const PairedDifference unclear =
      paired_difference({.031, -.012, .004, .018, .009}, {0, 0, 0, 0, 0});
  EXPECT_NEAR(unclear.interval->first, -0.009886015507327484, 1e-12);
  EXPECT_NEAR(unclear.interval->second, 0.02988601550732748, 1e-12);
  EXPECT_NEAR(*unclear.p, 0.23516029111615544, 1e-12);
}

TEST(Statistics, EqualRunsDifferByNothingAndOneRunHasNoInterval) {
  const PairedDifference equal = paired_difference({1, 2, 3}, {1, 2, 3});
  EXPECT_EQ(equal.mean, 0);
  EXPECT_EQ(equal.interval, std::pair(0.0, 0.0));
  EXPECT_EQ(equal.p, 1);
  EXPECT_EQ(paired_difference({3, 3}, {1, 1}).p, 0);
  const PairedDifference one = paired_difference({2}, {1.5});
  EXPECT_EQ(one.mean, 0.5);
  EXPECT_FALSE(one.interval || one.p);
}

TEST(Statistics, CrossedIntervalsAreThoseOfTheSpecification) {
  // specification of `compare`, 4.3: X = .01 sin(.7 n + .1) + .005, all 3^3 4^4 resamples
  std::vector<std::vector<double>> x(3, std::vector<double>(4));
  for (int n = 0; n < 12; ++n)
    x[static_cast<size_t>(n / 4)][static_cast<size_t>(n % 4)] = .01 * std::sin(.7 * n + .1) + .005;
  const CrossedInterval every = crossed_interval(x);
  EXPECT_NEAR(every.low, 0.00098821, 1e-8);
  EXPECT_NEAR(every.high, 0.01310176, 1e-8);
  EXPECT_NEAR(every.share_below, 0.02329282, 1e-8);
  EXPECT_NEAR(every.p, 2 * 0.02329282, 1e-7);
  // some of them, drawn: near it
  const CrossedInterval some = crossed_interval(x, 6000);
  EXPECT_NEAR(some.low, every.low, 5e-4);
  EXPECT_NEAR(some.high, every.high, 5e-4);
  EXPECT_NEAR(some.share_below, every.share_below, 0.01);
}

TEST(Statistics, CrossedIntervalsOfNoDifferenceAndOfAClearOne) {
  const CrossedInterval none = crossed_interval({{0, 0}, {0, 0}, {0, 0}});
  EXPECT_EQ(none.low, 0);
  EXPECT_EQ(none.high, 0);
  EXPECT_EQ(none.p, 1);
  const CrossedInterval clear = crossed_interval({{1, 2}, {1, 3}, {2, 2}});
  EXPECT_GT(clear.low, 0);
  EXPECT_EQ(clear.p, 0);
}

TEST(Statistics, Percentiles) {
  // numpy.percentile([3, 1, 2], [2.5, 97.5])
  const auto [low, high] = central_95({3, 1, 2});
  EXPECT_NEAR(low, 1.05, 1e-12);
  EXPECT_NEAR(high, 2.95, 1e-12);
}

TEST(Statistics, HolmsAdjustment) {
  // specification of `compare`, 4.3
  const std::vector<double> adjusted = holm_adjusted({.01, .04, .03});
  ASSERT_EQ(adjusted.size(), 3u);
  EXPECT_NEAR(adjusted[0], .03, 1e-15);
  EXPECT_NEAR(adjusted[1], .06, 1e-15);
  EXPECT_NEAR(adjusted[2], .06, 1e-15);
  EXPECT_EQ(holm_adjusted({.7, .9}), (std::vector<double>{1, 1}));
  EXPECT_TRUE(holm_adjusted({}).empty());
}

}  // namespace
}  // namespace tessera::train
