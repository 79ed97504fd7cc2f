#include "tessera/train/loop/find_batch.h"

#include <cmath>

#include "tessera/base/resident.h"
#include "tessera/train/loop/trainer.h"
#include "tessera/train/train_testing.h"

namespace tessera::train::find_batch_test {
namespace {

/// Activations that are large beside all else: 256 tokens of 256 numbers in 6 layers.
struct Setting {
  TemporaryFolder folder;
  Json json = tiny_recipe(folder.write("text.txt", counting_text(40000)));
  Recipe recipe = [this] {
    json["spec"]["d_model"] = 64;
    json["spec"]["layers"][0]["repeat"] = 6;
    json["spec"]["ffn"]["d_hidden"] = 256;
    return read_recipe(json, "", {"train.batch=6", "train.accumulate=2", "train.length=256"});
  }();
  BatchSearch find(int64_t budget) const { return find_batch(recipe, folder / "cache", budget); }
};

TEST(FindBatch, TakesTheMostThatFits) {
  const Setting s;
  const BatchSearch all = s.find(int64_t{1} << 40);
  std::vector<int64_t> sizes;
  for (const BatchTrial& trial : all.trials) {
    EXPECT_EQ(trial.batch * trial.accumulate, 12);
    EXPECT_TRUE(trial.tried);
    EXPECT_GT(trial.tokens_per_s, 0);
    sizes.push_back(trial.batch);
  }
  EXPECT_EQ(sizes, (std::vector<int64_t>{1, 2, 3, 4, 6, 12}));
  EXPECT_EQ(all.chosen.batch, 12);
  // twelve sequences at a time take more than one: at least 6 layers of keys, values, hidden
  // values and what goes between, 4 KiB a token
  EXPECT_GT(all.trials.back().bytes, all.trials.front().bytes + int64_t{11} * 256 * 6 * 4096 / 2);

  // a budget between two sizes
  const int64_t between = (all.trials[2].bytes + all.trials[5].bytes) / 2;
  const BatchSearch some = s.find(between);
  EXPECT_LT(some.chosen.batch, 12);
  EXPECT_GE(some.chosen.batch, 1);
  EXPECT_LE(some.chosen.bytes, between);
  EXPECT_GT(some.trials.back().bytes, between);
}

TEST(FindBatch, DoesNotTryWhatIsFarTooMuch) {
  const Setting s;
  const BatchSearch all = s.find(int64_t{1} << 40);
  const BatchSearch few = s.find(all.trials[1].bytes + (8 << 20));
  EXPECT_LT(few.chosen.batch, 6);
  EXPECT_FALSE(few.trials.back().tried);
}

TEST(FindBatch, WeightsAreNoPartOfASequence) {
  // 10 M parameters, 170 MB with gradients and moments; a sequence of 16 tokens takes few
  Setting s;
  Json json = s.json;
  json["spec"]["d_model"] = 512;
  json["spec"]["ffn"]["d_hidden"] = 1024;
  json["spec"]["layers"][0]["repeat"] = 4;
  s.recipe = read_recipe(json, "", {"train.batch=2", "train.accumulate=1", "train.length=16"});
  const BatchSearch all = s.find(int64_t{1} << 40);
  ASSERT_EQ(all.trials.size(), 2u);
  const int64_t one = all.trials[0].bytes, two = all.trials[1].bytes;
  // a limit just above what two sequences take, far below twice the weights
  const BatchSearch tight = s.find(std::max(one, two) + (48 << 20));
  EXPECT_EQ(tight.chosen.batch, 2);
  EXPECT_TRUE(tight.trials.back().tried);
}

TEST(FindBatch, SaysWhatToDoWhereNothingFits) {
  const Setting s;
  expect_error(ErrorKind::input, "one sequence of 256 tokens takes ", [&] { s.find(1 << 20); });
}

TEST(FindBatch, LeavesPartsToTheNoiseScale) {
  Setting s;
  s.recipe.watch = WatchRecipe{.noise_scale = 1};
  EXPECT_EQ(s.find(int64_t{1} << 40).chosen.batch, 6);
}

TEST(FindBatch, KnowsWhatThereIs) {
  EXPECT_GT(resident_bytes(), 1 << 20);
  EXPECT_GT(available_bytes(), resident_bytes() / 2);
}

}  // namespace
}  // namespace tessera::train::find_batch_test
