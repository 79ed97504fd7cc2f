// Values: tools/golden/scaling_fit.py (scipy), and the specification of `compare`.
#include "tessera/train/study/scaling_fit.h"

#include <cmath>

#include "tessera/train/study/statistics.h"
#include "tessera/train/train_testing.h"

namespace tessera::train {
namespace {

/// Runs of planted coefficients.
std::vector<ScalingRun> planted() {
  std::vector<ScalingRun> runs;
  for (const double n : {1e6, 3e6, 10e6, 30e6, 100e6})
    for (const double d : {.02e9, .1e9, .5e9, 2.5e9})
      runs.push_back({n, d, 1.8 + 480 * std::pow(n, -.35) + 2000 * std::pow(d, -.37)});
  return runs;
}

TEST(ScalingFit, RecoversPlantedCoefficients) {
  const ScalingFit fit = fit_scaling(planted());
  EXPECT_NEAR(fit.e, 1.8, 1e-4);
  EXPECT_NEAR(fit.a, 480, 0.5);
  EXPECT_NEAR(fit.b, 2000, 3);
  EXPECT_NEAR(fit.alpha, .35, 1e-4);
  EXPECT_NEAR(fit.beta, .37, 1e-4);
  EXPECT_LT(fit.objective, 1e-12);
  EXPECT_NEAR(fit.loss(1e9, 2e10), 1.8 + 480 * std::pow(1e9, -.35) + 2000 * std::pow(2e10, -.37),
              1e-4);
}

TEST(ScalingFit, OfNoiseAndAnOutlier) {
  std::vector<ScalingRun> runs = planted();
  for (size_t i = 0; i < runs.size(); ++i)
    runs[i].loss *= std::exp(.002 * std::sin(.7 * static_cast<double>(i) + .1));
  runs[7].loss *= 1.05;
  const ScalingFit fit = fit_scaling(runs);
  EXPECT_NEAR(fit.objective / 5.5151805e-5, 1, 1e-6);
  EXPECT_NEAR(fit.e, 1.806205, 1e-5);
  EXPECT_NEAR(fit.a, 480.03027, 0.05);
  EXPECT_NEAR(fit.b, 2034.9229, 0.3);
  EXPECT_NEAR(fit.alpha, .34972166, 1e-5);
  EXPECT_NEAR(fit.beta, .37129146, 1e-5);
  // the interval of a prediction contains the planted value
  std::vector<double> predicted;
  for (const ScalingFit& one : bootstrap_scaling(runs, fit, 200))
    predicted.push_back(one.loss(1e9, 2e10));
  const auto [low, high] = central_95(predicted);
  const double truth = 1.8 + 480 * std::pow(1e9, -.35) + 2000 * std::pow(2e10, -.37);
  EXPECT_LT(low, truth);
  EXPECT_GT(high, truth);
  EXPECT_LT(high - low, 0.1);
}

TEST(ScalingFit, OptimalAllocation) {
  const ScalingFit planted{.e = 1.8, .a = 480, .b = 2000, .alpha = .35, .beta = .37};
  const auto [n, d] = planted.optimum(1e18);
  EXPECT_NEAR(n / 9.0319183e7, 1, 1e-7);
  EXPECT_NEAR(6 * n * d, 1e18, 1e9);
  // the printed constants of Chinchilla, and those of its reanalysis, at its budget
  const ScalingFit printed{.e = 1.69, .a = 406.4, .b = 410.7, .alpha = .34, .beta = .28};
  EXPECT_NEAR(printed.optimum(5.76e23).first / 3.22e10, 1, 0.01);
  const ScalingFit again{.e = 1.82, .a = 482.01, .b = 2085.43, .alpha = .3478, .beta = .3658};
  EXPECT_NEAR(again.optimum(5.76e23).first / 7.22e10, 1, 0.01);
}

TEST(ScalingFit, RefusesTooFewRuns) {
  std::vector<ScalingRun> runs = planted();
  runs.resize(8);  // two sizes
  expect_error(ErrorKind::usage, "8 runs; expected at least 3 model sizes",
               [&] { fit_scaling(runs); });
  runs = planted();
  runs[3].loss = NAN;
  expect_error(ErrorKind::usage, "expected numbers above 0", [&] { fit_scaling(runs); });
}

}  // namespace
}  // namespace tessera::train
