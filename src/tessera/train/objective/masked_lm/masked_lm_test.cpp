// Training of encoders by the tokens hidden in a text.
#include "tessera/ops/ops_testing.h"
#include "tessera/train/loop/batch_tensors.h"
#include "tessera/train/objective/objective.h"
#include "tessera/train/objective/loss.h"
#include "tessera/train/runs/run_folder.h"
#include "tessera/train/train_testing.h"
#include "tessera/train/loop/trainer.h"

namespace tessera::train::masked_lm_test {
namespace {

Json masked_recipe(const std::string& file) {
  Json json = tiny_recipe(file);
  json["spec"]["arch"] = "encoder";
  json["spec"]["vocab"] = 257;
  json["spec"]["head"] = {{"type", "masked_lm"}};
  json["objective"] = {{"type", "masked_lm"}, {"mask_id", 256}, {"rate", 0.25}};
  return json;
}

TEST(MaskedLm, LossIsTheMeanOfTheSelectedTokens) {
  Tensor logits = 2 * ops::gen({6, 7}, 0.7, 0.1).to(at::kDouble);
  const TokenLosses sums = cross_entropy_(
      logits, at::tensor(std::vector<int64_t>{3, 6, -1, 0, -1, 2}, at::kLong), {.scale = 0.25});
  EXPECT_NEAR(sums.nll / 4, 1.49860414, 1e-7);
}

TEST(MaskedLm, CorruptionIsAFunctionOfTheSampleAndInWhatIsHeldOutOfNothingElse) {
  const TemporaryFolder folder;
  Json json = masked_recipe(folder.write("a.txt", counting_text(4000)));
  const auto open = [&](int64_t seed) {
    json["train"]["seed"] = seed;
    return open_objective(read_recipe(json, ""), folder / "cache");
  };
  const auto one = open(1), other = open(2);
  EXPECT_EQ(one->name(), "masked_lm");
  EXPECT_EQ(one->source().tokens_per_byte(), 0);
  std::vector<int64_t> begun;
  const PackedBatch all = one->source().train(8, 4, begun),
                    last = one->source().train(11, 1, begun);
  EXPECT_EQ(std::vector<int64_t>(all.ids.end() - 16, all.ids.end()), last.ids);
  EXPECT_EQ(std::vector<int64_t>(all.targets.end() - 16, all.targets.end()), last.targets);
  // a quarter of every window; none of what is asked beside them
  EXPECT_EQ(all.n_targets, 16);
  EXPECT_EQ(one->denominators(all).of("loss"), 16);
  const PackedBatch held = one->source().valid({0, 5}), alone = one->source().valid({5}),
                    of_other = other->source().valid({0, 5});
  EXPECT_EQ(held.ids, of_other.ids);
  EXPECT_EQ(held.targets, of_other.targets);
  EXPECT_EQ(std::vector<int64_t>(held.ids.begin() + 16, held.ids.end()), alone.ids);
  EXPECT_EQ(std::vector<int64_t>(held.targets.begin() + 16, held.targets.end()), alone.targets);
  EXPECT_NE(one->source().train(8, 4, begun).targets, other->source().train(8, 4, begun).targets);
}

void learns_and_goes_on(const std::string& unit) {
  const TemporaryFolder folder;
  Json json = masked_recipe(folder.write("a.txt", counting_text(4000)));
  json["objective"]["unit"] = unit;
  json["train"]["steps"] = 60;
  json["train"]["accumulate"] = 2;
  json["checkpoint"]["every"] = 25;
  const Recipe recipe = read_recipe(json, "");
  const TrainResult whole = train(recipe, folder / "whole", {});
  ASSERT_TRUE(whole.last && whole.last->valid_loss && whole.last->accuracy);
  EXPECT_FALSE(whole.last->valid_bits_per_byte);
  // eleven characters: ln 11 is what their number alone gives
  EXPECT_LT(*whole.last->valid_loss, 2.397895);

  CancelToken cancel;
  const auto stop = [&](const LogLine& line, int64_t) {
    if (line.step == 31) cancel.request(15);
  };
  expect_error(ErrorKind::cancelled, "",
               [&] { train(recipe, folder / "cut", {.cancel = &cancel, .on_step = stop}); });
  const TrainResult resumed = train(recipe, folder / "cut", {.resume = true});
  ASSERT_TRUE(resumed.last && resumed.last->valid_loss);
  for (const char* file : {"model.safetensors", "optimizer.safetensors"})
    EXPECT_TRUE(read_text_file(checkpoint_folder(folder / "whole", 60) / file) ==
                read_text_file(checkpoint_folder(folder / "cut", 60) / file))
        << file;
  EXPECT_EQ(*whole.last->valid_loss, *resumed.last->valid_loss);
}

TEST(MaskedLm, LearnsAndGoesOnWithTheSameBits) {
  for (const char* unit : {"token", "word", "span"}) learns_and_goes_on(unit);
}

TEST(MaskedLm, ATextAloneIsTheSameAmongOthers) {
  const Recipe recipe = read_recipe(masked_recipe("a.txt"), "");
  const model::Model model(recipe.spec, model::Weights::initial(recipe.spec, 3, at::kDouble));
  std::vector<std::vector<int64_t>> texts;
  std::vector<Tensor> alone;
  PackedBatch packed;
  for (const int64_t n : {1, 7, 63}) {
    std::vector<int64_t>& text = texts.emplace_back();
    for (int64_t i = 0; i < n; ++i) text.push_back((i * 37 + n) % 257);
    packed.pieces.push_back({0, static_cast<int64_t>(std::ssize(packed.ids)), n});
    packed.ids.insert(packed.ids.end(), text.begin(), text.end());
    alone.push_back(model.hidden(nn::Batch::of({text})));
  }
  EXPECT_TRUE(at::allclose(model.hidden(batch_of(packed)), at::cat(alone), 0, 1e-10));
}

}  // namespace
}  // namespace tessera::train::masked_lm_test
