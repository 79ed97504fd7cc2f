// Values of the published definitions (linear, cosine: transformers' schedule lambdas; wsd:
// arXiv:2404.06395).
#include "tessera/train/schedule.h"

#include <gtest/gtest.h>

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

TEST(Schedule, RefusesWhatDoesNotFit) {
  Schedule s{.warmup = 11};
  EXPECT_THROW(s.check(10, "schedule"), Error);
  s = {.final_fraction = 1.5};
  EXPECT_THROW(s.check(10, "schedule"), Error);
}

}  // namespace
}  // namespace tessera::train::schedule_test
