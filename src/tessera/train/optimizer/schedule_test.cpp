// Values of the published definitions (linear, cosine: transformers' schedule lambdas; wsd:
// arXiv:2404.06395).
#include "tessera/train/optimizer/schedule.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tessera::train::schedule_test {
namespace {

constexpr int64_t kTimes[] = {0, 1, 2, 3, 4, 7, 9, 10, 12};

void expect_factors(const Schedule& schedule, const std::vector<double>& want) {
  for (size_t i = 0; i < want.size(); ++i)
    EXPECT_NEAR(schedule.factor(kTimes[i], 10), want[i], 5e-9) << "t = " << kTimes[i];
}

TEST(Schedule, AfterWarmup) {
  Schedule s{.type = ScheduleType::constant, .warmup = 4, .final_fraction = 0};
  expect_factors(s, {0, .25, .5, .75, 1, 1, 1, 1, 1});
  s.type = ScheduleType::linear;
  expect_factors(s, {0, .25, .5, .75, 1, .5, .16666667, 0, 0});
  s.type = ScheduleType::cosine;
  s.final_fraction = 0.1;
  expect_factors(s, {0, .25, .5, .75, 1, .55, .16028857, .1, .1});  // stays down after the end
}

TEST(Schedule, InverseSquareRoot) {
  Schedule s{.type = ScheduleType::inverse_sqrt, .warmup = 4};
  expect_factors(s, {0, .25, .5, .75, 1, .75592895, .66666667, .63245553, .57735027});
  s.timescale = 16;
  EXPECT_NEAR(s.factor(20, 100), std::sqrt(0.5), 1e-12);
}

TEST(Schedule, Noam) {
  // d 512, W 4000: the peak is 512^-1/2 4000^-1/2
  const Schedule s{.type = ScheduleType::noam, .warmup = 4000};
  const double peak = 1 / std::sqrt(512.0 * 4000);
  EXPECT_NEAR(peak * s.factor(0, 20000), 1.74692811e-7, 1e-15);
  EXPECT_NEAR(peak * s.factor(3999, 20000), 6.98771243e-4, 1e-12);
  EXPECT_NEAR(peak * s.factor(15999, 20000), 3.49385622e-4, 1e-12);
  EXPECT_THROW(Schedule{.type = ScheduleType::noam}.check(10, "schedule"), Error);
}

TEST(Schedule, CyclesBeginAnewAndEndBelow) {
  const Schedule s{.type = ScheduleType::cosine, .warmup = 2, .final_fraction = 0.1, .cycles = 2};
  const auto at = [&](int64_t t) { return s.factor(t, 10); };  // cycles of 4 behind the warm-up
  EXPECT_NEAR(at(2), 1, 1e-12);
  EXPECT_NEAR(at(4), 0.55, 1e-12);
  EXPECT_NEAR(at(6), 1, 1e-12);
  EXPECT_NEAR(at(8), 0.55, 1e-12);
  EXPECT_NEAR(at(10), 0.1, 1e-12);
}

TEST(Schedule, WarmupStableDecay) {
  // W 2, S 4, D 4
  Schedule s{.type = ScheduleType::wsd,
             .warmup = 2,
             .final_fraction = 0.1,
             .decay_fraction = 0.4,
             .decay = DecayShape::linear};
  expect_factors(s, {.1, .55, 1, 1, 1, .775, .325, .1, .1});
  s.decay = DecayShape::cosine;
  expect_factors(s, {.1, .55, 1, 1, 1, .86819805, .23180195, .1, .1});
  s.decay = DecayShape::one_minus_sqrt;
  expect_factors(s, {.1, .55, 1, 1, 1, .55, .22057714, .1, .1});
}

TEST(Schedule, WarmupIsAShareOrCut) {
  Schedule share{.warmup_fraction = 0.1};
  EXPECT_EQ(share.fit(50, "schedule"), "");
  EXPECT_EQ(share.warmup, 5);
  EXPECT_EQ(share.warmup_fraction, 0);
  Schedule tiny{.warmup_fraction = 0.1};
  tiny.fit(3, "schedule");
  EXPECT_EQ(tiny.warmup, 0);
  Schedule longer{.warmup = 100};
  EXPECT_EQ(longer.fit(3, "schedule"), "schedule.warmup: 100 steps are cut to 3, the steps of the run");
  EXPECT_EQ(longer.warmup, 3);
  Schedule both{.warmup = 1, .warmup_fraction = 0.1};
  EXPECT_THROW(both.fit(10, "schedule"), Error);
  Schedule above{.warmup_fraction = 1.5};
  EXPECT_THROW(above.fit(10, "schedule"), Error);
}

TEST(Schedule, RefusesWhatDoesNotFit) {
  Schedule s{.warmup = 11};
  EXPECT_THROW(s.check(10, "schedule"), Error);
  s = {.final_fraction = 1.5};
  EXPECT_THROW(s.check(10, "schedule"), Error);
}

}  // namespace
}  // namespace tessera::train::schedule_test
