#include "tessera/train/runs/sweep.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tessera/base/error.h"

namespace tessera::train {
namespace {

std::string refusal(const std::vector<std::string>& grids, int64_t seeds = 1) {
  try {
    plan_sweep(grids, seeds);
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

TEST(Sweep, HasEveryCombinationWithEverySeed) {
  const Sweep sweep = plan_sweep({"optimizer.lr=1e-3,3e-3", "train.batch=4,8"}, 2);
  ASSERT_EQ(sweep.runs.size(), 8u);
  EXPECT_EQ(sweep.rows, (std::vector<std::vector<std::string>>{
                            {"1e-3", "4"}, {"1e-3", "8"}, {"3e-3", "4"}, {"3e-3", "8"}}));
  EXPECT_EQ(sweep.runs[3].overrides,
            (std::vector<std::string>{"optimizer.lr=1e-3", "train.batch=8", "train.seed=2"}));
  EXPECT_EQ(sweep.runs[3].name, "lr=1e-3,batch=8,seed=2");
  EXPECT_EQ(sweep.runs[3].row, 1u);
  const Sweep plain = plan_sweep({}, 3);
  ASSERT_EQ(plain.runs.size(), 3u);
  EXPECT_EQ(plain.runs[2].name, "seed=3");
}

TEST(Sweep, CommasWithinValuesDoNotDivide) {
  const Sweep sweep = plan_sweep({R"(a.b=[1,2],{"c": ",", "d": 3},"x,\",y")"}, 1);
  EXPECT_EQ(sweep.values[0],
            (std::vector<std::string>{"[1,2]", R"({"c": ",", "d": 3})", R"("x,\",y")"}));
}

TEST(Sweep, FoldersDifferWhereNamesWouldNot) {
  const Sweep sweep = plan_sweep({R"(a="x y","x/y")"}, 1);
  EXPECT_EQ(sweep.runs[0].name, "1,a=_x_y_,seed=1");
  EXPECT_EQ(sweep.runs[1].name, "2,a=_x_y_,seed=1");
}

TEST(Sweep, WhatIsWrongIsNamed) {
  EXPECT_EQ(refusal({"lr"}), "[sweep] --grid lr; expected KEY=a,b,c, as optimizer.lr=1e-3,3e-3");
  EXPECT_EQ(refusal({"lr=1,,2"}), "[sweep] --grid lr: an empty value; expected values that differ");
  EXPECT_EQ(refusal({"lr=1,1"}), "[sweep] --grid lr: 1 twice; expected values that differ");
  EXPECT_EQ(refusal({"lr=1", "lr=2"}),
            "[sweep] --grid lr: given twice; expected one list of values");
  EXPECT_EQ(refusal({"train.seed=1,2"}), "[sweep] --grid train.seed; expected --seeds N");
  EXPECT_EQ(refusal({}, 0), "[sweep] --seeds 0; expected 1 or more");
  EXPECT_EQ(refusal({"a=1,2"}, 5001),
            "[sweep] more than 10000 runs; expected fewer values or seeds");
}

RunRecord record(std::vector<std::pair<std::optional<double>, double>> lines) {
  RunRecord run;
  for (const auto& [valid, accuracy] : lines) {
    LogLine line;
    line.step = static_cast<int64_t>(run.lines.size()) + 1;
    line.loss = 9 - static_cast<double>(line.step);
    line.valid_loss = valid;
    if (valid) line.accuracy = accuracy, line.scores["f1"] = accuracy / 2;
    run.lines.push_back(line);
  }
  return run;
}

TEST(Sweep, ARunReachesItsBestEvaluation) {
  const RunRecord run = record({{3, 0.1}, {{}, 0}, {2, 0.4}, {2.5, 0.3}});
  EXPECT_EQ(reached(run, goal_of("valid_loss")), 2);
  EXPECT_EQ(reached(run, goal_of("accuracy")), 0.4);
  EXPECT_EQ(reached(run, goal_of("f1")), 0.2);
  EXPECT_EQ(reached(run, goal_of("loss")), 5);  // at the end
  EXPECT_EQ(reached(run, goal_of("bleu")), std::nullopt);
  EXPECT_EQ(reached(record({{NAN, 0}}), goal_of("valid_loss")), std::nullopt);
}

TEST(Sweep, RowsHaveMeansAndDeviationsTheBestFirst) {
  const Sweep sweep = plan_sweep({"lr=1,2,3,4"}, 3);
  const std::vector<std::optional<double>> values = {3,  3,  3,             // 1
                                                     1,  2,  3,             // 2
                                                     0,  1,  std::nullopt,  // 3: one failed
                                                     {}, {}, {}};           // 4: not yet
  const auto rows = sweep_rows(sweep, values, goal_of("valid_loss"));
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[0].values[0], "2");
  EXPECT_EQ(rows[0].mean, 2);
  EXPECT_EQ(rows[0].deviation, 1);  // of 1, 2, 3
  EXPECT_EQ(rows[1].values[0], "1");
  EXPECT_EQ(rows[1].deviation, 0);
  EXPECT_EQ(rows[2].values[0], "3");
  EXPECT_EQ(rows[2].mean, 0.5);
  EXPECT_EQ(rows[2].finished, 2);
  EXPECT_EQ(rows[3].finished, 0);
  EXPECT_EQ(sweep_rows(sweep, values, goal_of("accuracy"))[0].values[0], "1");
}

TEST(Sweep, SaysWhereTheBestIsAtTheEndOfAGrid) {
  const Sweep sweep = plan_sweep({"lr=1e-3,1e-2,1e-4", "act=silu,gelu"}, 1);
  EXPECT_EQ(sweep_notes(sweep, {.values = {"1e-4", "silu"}, .reached = {}}),
            std::vector<std::string>{"the best lr is the least of its values; try smaller ones"});
  EXPECT_TRUE(sweep_notes(sweep, {.values = {"1e-3", "silu"}, .reached = {}}).empty());
}

}  // namespace
}  // namespace tessera::train
