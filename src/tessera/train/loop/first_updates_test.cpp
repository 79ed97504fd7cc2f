#include "tessera/train/loop/first_updates.h"

#include "tessera/train/loop/trainer.h"
#include "tessera/train/runs/run_log.h"
#include "tessera/train/train_testing.h"

namespace tessera::train::first_updates_test {
namespace {

/// What the updates of a short run warn of.
std::string warnings_of(const std::vector<std::string>& overrides) {
  const TemporaryFolder folder;
  const Recipe recipe =
      read_recipe(tiny_recipe(folder.write("a.txt", counting_text(4000))), "", overrides);
  std::string out;
  TrainOptions options;
  options.on_step = [&](const LogLine& line, int64_t) {
    for (const std::string& text : line.warnings) out += fmt::format("{}: {}\n", line.step, text);
  };
  train(recipe, folder / "run", options);
  return out;
}

TEST(FirstUpdates, ARunThatLearnsWarnsOfNothing) {
  EXPECT_EQ(warnings_of({"train.steps=4", "schedule.warmup=2"}), "");
}

TEST(FirstUpdates, ARateThatMovesNothingIsSaid) {
  const std::string said =
      warnings_of({"train.steps=4", "schedule.warmup=0", "optimizer.lr=1e-12"});
  EXPECT_NE(said.find("1: the update moves the weights by "), std::string::npos) << said;
  EXPECT_NE(said.find("nothing is learned; raise optimizer.lr (1e-12)"), std::string::npos) << said;
  // behind a warm-up the first update has no rate at all
  EXPECT_NE(warnings_of({"train.steps=4", "schedule.type=\"cosine\"", "schedule.warmup=2",
                         "optimizer.lr=1e-12"})
                .find("2: the update moves"),
            std::string::npos);
}

TEST(FirstUpdates, LogitsWithoutVarianceAreSaid) {
  const std::string said = warnings_of({"train.steps=2", "spec.norm=\"dyt\""});
  EXPECT_NE(said.find("1: the gradient's norm is "), std::string::npos) << said;
  EXPECT_NE(said.find("which is ln(vocab) of logits without variance, hardly moves"),
            std::string::npos)
      << said;
}

TEST(FirstUpdates, PartsThatNoGradientReachesAreNamed) {
  // a predictor whose loss has no weight
  const std::string said = warnings_of(
      {"train.steps=3", "schedule.warmup=0", "train.predictors=0",
       R"(spec.predictors=[{"layers": [{"mixer": {"type": "attention", "n_heads": 2}}]}])"});
  EXPECT_NE(said.find("2: no gradient reaches"), std::string::npos) << said;
  EXPECT_NE(said.find("predictors.0."), std::string::npos) << said;
}

}  // namespace
}  // namespace tessera::train::first_updates_test
