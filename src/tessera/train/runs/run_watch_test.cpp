#include "tessera/train/runs/run_watch.h"

#include <cmath>
#include <numeric>

#include "tessera/train/train_testing.h"

namespace tessera::train::run_watch_test {
namespace {

LogLine evaluation(int64_t step, double loss) {
  LogLine line;
  line.step = step;
  line.valid_loss = loss;
  line.accuracy = 1 / loss;
  return line;
}

TEST(RunWatch, EndsBehindEvaluationsThatAreNoBetter) {
  RunWatch watch({.patience = 2, .min_delta = 0.1, .from = 10}, {}, 0, "valid_loss");
  const auto after = [&](int64_t step, double loss) {
    watch.evaluated(evaluation(step, loss));
    return watch.stop_reason();
  };
  EXPECT_EQ(after(5, 0.1), "");  // before it counts
  EXPECT_EQ(after(10, 3.0), "");
  EXPECT_EQ(after(15, 2.95), "");  // too little better
  EXPECT_EQ(after(20, 2.85), "");  // better than the 3.0 that counts
  EXPECT_EQ(after(25, 2.8), "");
  EXPECT_EQ(after(30, 2.76),
            "early stopping: no improvement of valid_loss in 2 evaluations; best 2.85 at step 20");
}

TEST(RunWatch, EndsWhereAValueIsReached) {
  RunWatch loss({.reach = 2.0}, {}, 0, "valid_loss");
  loss.evaluated(evaluation(1, 2.5));
  EXPECT_EQ(loss.stop_reason(), "");
  loss.evaluated(evaluation(2, 2.0));
  EXPECT_EQ(loss.stop_reason(), "target reached: valid_loss = 2, stop.reach = 2");
  RunWatch accuracy({.metric = "accuracy", .reach = 0.5}, {}, 0, "valid_loss");
  accuracy.evaluated(evaluation(1, 4));
  EXPECT_EQ(accuracy.stop_reason(), "");
  accuracy.evaluated(evaluation(2, 1.6));
  EXPECT_EQ(accuracy.stop_reason(), "target reached: accuracy = 0.625, stop.reach = 0.5");
}

TEST(RunWatch, KnowsTheBestCheckpoints) {
  RunWatch loss({}, {}, 2, "valid_loss"), accuracy({}, {}, 2, "accuracy");
  using Steps = std::vector<int64_t>;
  const std::vector<std::pair<double, Steps>> told{
      {3, {1}}, {2, {2, 1}}, {4, {2, 1}}, {2, {2, 4}}, {1, {5, 2}}};
  int64_t step = 0;
  for (const auto& [value, steps] : told) {
    loss.evaluated(evaluation(++step, value));
    accuracy.evaluated(evaluation(step, value));
    EXPECT_EQ(loss.best_steps(), steps) << step;
    EXPECT_EQ(accuracy.best_steps(), steps) << step;  // 1 / loss
  }
}

TEST(RunWatch, NamesTheMetricsThereAre) {
  RunWatch watch({.metric = "valid_los", .patience = 1}, {}, 0, "valid_loss");
  LogLine line = evaluation(1, 2);
  line.losses = {{"valid_fim_1", 2.0}, {"z_loss", 1.0}};
  expect_error(
      ErrorKind::spec,
      "[stop.metric] found \"valid_los\"; expected one of valid_loss, accuracy, valid_fim_1",
      [&] { watch.evaluated(line); });
  RunWatch part({}, {}, 1, "valid_fim_1");
  part.evaluated(line);
  EXPECT_EQ(part.best_steps(), std::vector<int64_t>{1});
}

/// The statistics by their definition: weights of all losses so far, those of the first 50 equal.
TEST(RunWatch, FindsSpikes) {
  RunWatch watch({}, {.spike = 6}, 0, "valid_loss");
  std::vector<double> losses, weights;
  const auto moments = [&] {
    double mean = 0, variance = 0;
    for (size_t i = 0; i < losses.size(); ++i) mean += weights[i] * losses[i];
    for (size_t i = 0; i < losses.size(); ++i)
      variance += weights[i] * (losses[i] - mean) * (losses[i] - mean);
    return std::pair(mean, std::sqrt(variance));
  };
  const auto count = [&](double loss) {
    const double decay =
        std::min(0.98, static_cast<double>(losses.size()) / static_cast<double>(losses.size() + 1));
    for (double& weight : weights) weight *= decay;
    losses.push_back(loss);
    weights.push_back(1 - decay);
  };
  const auto ordinary = [](int i) { return 2 + std::sin(1.7 * i) + 5.0 / (i + 1); };
  // 50 of them are needed, however large one is
  for (int i = 0; i < 50; ++i) {
    EXPECT_FALSE(watch.spike(ordinary(i))) << i;
    count(ordinary(i));
  }
  for (int i = 50; i < 200; ++i) {
    const bool high = i == 120 || i == 121;
    const double loss = high ? 20 : ordinary(i);
    const auto [mean, deviation] = moments();
    const auto found = watch.spike(loss);
    ASSERT_EQ(found.has_value(), high) << i;
    if (high) {
      EXPECT_NEAR(found->mean, mean, 1e-9);
      EXPECT_NEAR(found->deviations, (loss - mean) / deviation, 1e-9);
    }
    count(high ? mean + 6 * deviation : loss);
  }
  RunWatch silent({}, {.spike = 0}, 0, "valid_loss");
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(silent.spike(i == 99 ? 100 : ordinary(i)));
}

TEST(RunWatch, FindsDivergence) {
  RunWatch watch({.diverged = 1}, {.spike = 0}, 0, "valid_loss");
  int64_t step = 0, found_at = 0;
  for (; step < 400 && found_at == 0; ++step) {
    watch.spike(step < 100 ? 3 - 0.01 * static_cast<double>(step)
                           : 2 + 0.02 * static_cast<double>(step - 100));
    if (const auto found = watch.divergence(step)) {
      found_at = step;
      EXPECT_GT(found->mean, found->least + 1);
      EXPECT_GT(found->least_step, 100);  // the mean follows
      EXPECT_LT(found->least_step, 150);
    }
  }
  EXPECT_GT(found_at, 150);
}

TEST(RunWatch, NamesExpertsWithoutTokens) {
  RunWatch watch({}, {.idle_experts = 3}, 0, "valid_loss");
  const std::vector<double> some{2, 0, 1, 0}, all{1, 1, 1, 1}, last{1, 1, 1, 0};
  const auto say = [&](const std::vector<double>& loads) {
    return watch.expert_loads("layers.0.ffn.router", loads);
  };
  EXPECT_EQ(say(some), "");
  EXPECT_EQ(say(all), "");
  EXPECT_EQ(say(some), "");
  EXPECT_EQ(say(some), "");
  EXPECT_EQ(say(some), "layers.0.ffn.router: experts 1, 3 of 4 got no token in 3 updates");
  EXPECT_EQ(say(some), "");  // once
  EXPECT_EQ(say(all), "");
  EXPECT_EQ(say(last), "");
  EXPECT_EQ(say(last), "");
  EXPECT_EQ(say(last), "layers.0.ffn.router: expert 3 of 4 got no token in 3 updates");
}

TEST(RunWatch, GoesOnFromItsState) {
  const auto make = [] {
    return RunWatch({.patience = 5, .diverged = 1e9}, {.idle_experts = 4}, 3, "valid_loss");
  };
  const auto drive = [](RunWatch& watch, int from, int to) {
    std::string told;
    for (int i = from; i < to; ++i) {
      const double loss = 2 + std::sin(1.7 * i) + (i % 37 == 36 ? 30 : 0);
      if (const auto spike = watch.spike(loss)) told += fmt::format("{} {} ", i, spike->deviations);
      watch.divergence(i);
      told += watch.expert_loads("a", {1, i % 9 == 0 ? 1.0 : 0.0});
      if (i % 10 == 0) watch.evaluated(evaluation(i, 3 + std::cos(0.1 * i)));
    }
    return told;
  };
  RunWatch whole = make(), first = make(), second = make();
  const std::string told = drive(whole, 0, 150);
  EXPECT_NE(told.find("expert 1 of 2"), std::string::npos) << told;
  const std::string before = drive(first, 0, 87);
  second.restore(json_of(first.to_json().dump()), "trainer.json");
  EXPECT_EQ(before + drive(second, 87, 150), told);
  EXPECT_NE(whole.stop_reason(), "");
  EXPECT_EQ(second.stop_reason(), whole.stop_reason());
  EXPECT_EQ(second.to_json(), whole.to_json());
  expect_error(ErrorKind::file, "[checkpoint] trainer.json: \"watch\":", [&] {
    make().restore(json_of(R"({"last": "x"})"), "trainer.json");
  });
}

}  // namespace
}  // namespace tessera::train::run_watch_test
