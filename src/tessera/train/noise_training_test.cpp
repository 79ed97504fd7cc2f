// Training by questions that are made of a text: spans, prefixes, middles, spoilt copies.
#include <cmath>

#include "tessera/train/batch_tensors.h"
#include "tessera/train/evaluate.h"
#include "tessera/train/noise_testing.h"
#include "tessera/train/run_folder.h"
#include "tessera/train/trainer.h"

namespace tessera::train::noise_training_test {
namespace {

std::vector<Json> recipes(const std::string& file) {
  Json middle_alone = kMiddle;
  middle_alone["loss"] = "middle";
  middle_alone["rate"] = 1;
  return {noise_pair_recipe(file, kSpans), noise_pair_recipe(file, kBart),
          noise_pair_recipe(file, kUl2),   noise_recipe(file, kUl2),
          noise_recipe(file, kMiddle),     noise_recipe(file, middle_alone),
          noise_recipe(file, {{"type", "prefix_lm"}})};
}

TEST(Noise, LearnsAndGoesOnWithTheSameBits) {
  const TemporaryFolder folder;
  const std::string file = folder.write("a.txt", counting_text(4000));
  int number = 0;
  for (Json json : recipes(file)) {
    const std::string name = json["objective"]["type"].get<std::string>() + std::to_string(number++);
    json["train"]["steps"] = 40;
    json["train"]["accumulate"] = 2;
    json["checkpoint"]["every"] = 17;
    const Recipe recipe = read_recipe(json, "");
    const TrainResult whole = train(recipe, folder / (name + "whole"), {});
    ASSERT_TRUE(whole.last && whole.last->valid_loss && whole.last->accuracy) << name;
    EXPECT_FALSE(whole.last->valid_bits_per_byte) << name;
    // where nothing is learned it is ln 320
    EXPECT_LT(*whole.last->valid_loss, std::log(320.0) - 1) << name;

    CancelToken cancel;
    const auto stop = [&](const LogLine& line, int64_t) {
      if (line.step == 21) cancel.request(15);
    };
    expect_error(ErrorKind::cancelled, "", [&] {
      train(recipe, folder / (name + "cut"), {.cancel = &cancel, .on_step = stop});
    });
    const TrainResult resumed = train(recipe, folder / (name + "cut"), {.resume = true});
    for (const char* part : {"model.safetensors", "optimizer.safetensors"})
      EXPECT_TRUE(read_text_file(checkpoint_folder(folder / (name + "whole"), 40) / part) ==
                  read_text_file(checkpoint_folder(folder / (name + "cut"), 40) / part))
          << name << " " << part;
    ASSERT_TRUE(resumed.last && resumed.last->valid_loss);
    EXPECT_EQ(*whole.last->valid_loss, *resumed.last->valid_loss) << name;
  }
}

/// Questions of texts of 1 to 63 tokens.
std::vector<NoisedPiece> questions() {
  std::vector<NoisedPiece> out;
  for (const int64_t n : {1, 7, 63}) {
    Noised text;
    for (int64_t i = 0; i < n; ++i) {
      text.given.push_back((i * 37 + n) % 300);
      text.asked.push_back((i * 53 + 7 * n) % 300);
    }
    out.push_back({0, std::move(text)});
  }
  return out;
}

/// Mean losses of each question, alone or packed; with gradients, which take torch's operations.
TEST(Noise, AQuestionAloneIsTheSameAmongOthers) {
  const auto check = [](const Json& json, const std::optional<int64_t>& start) {
    const Recipe recipe = read_recipe(json, "");
    const model::Model model(recipe.spec,
                             model::Weights::initial(recipe.spec, 3, at::kDouble));
    const auto hidden = [&](const std::vector<NoisedPiece>& pieces) {
      const PackedBatch packed = pack_noised(pieces, start, 64);
      return hidden_of(model, packed, batch_of(packed), {}).detach();
    };
    std::vector<Tensor> alone;
    for (const NoisedPiece& piece : questions()) alone.push_back(hidden({piece}));
    EXPECT_TRUE(at::allclose(hidden(questions()), at::cat(alone), 0, 1e-10));
  };
  check(noise_recipe("a.txt", kSpans), std::nullopt);
  check(noise_pair_recipe("a.txt", kSpans), 256);
}

TEST(Noise, WhatIsGivenLaterMovesWhatIsGivenBefore) {
  const Recipe recipe = read_recipe(noise_recipe("a.txt", {{"type", "prefix_lm"}}), "");
  const model::Model model(recipe.spec, model::Weights::initial(recipe.spec, 3));
  const at::NoGradGuard no_gradients;
  const auto hidden = [&](Noised text) {
    const PackedBatch packed = pack_noised({{0, std::move(text)}}, std::nullopt, 32);
    return hidden_of(model, packed, batch_of(packed), {});
  };
  const Tensor first = hidden({{1, 2, 3, 4}, {5, 6, 7}}), given = hidden({{1, 2, 3, 9}, {5, 6, 7}}),
               asked = hidden({{1, 2, 3, 4}, {5, 9, 7}});
  EXPECT_FALSE(at::equal(first[0], given[0]));
  // what is asked is seen by what follows it alone
  EXPECT_TRUE(at::equal(first.narrow(0, 0, 5), asked.narrow(0, 0, 5)));
  EXPECT_FALSE(at::equal(first[5], asked[5]));
}

TEST(Noise, ALossIsTheMeanOfAllThatIsAskedInAnUpdate) {
  const TemporaryFolder folder;
  const Recipe recipe =
      read_recipe(noise_pair_recipe(folder.write("a.txt", counting_text(4000)), kUl2), "");
  const auto objective = open_objective(recipe, folder / "cache");
  EXPECT_EQ(objective->name(), "mixture");
  const model::Model model(recipe.spec, model::Weights::initial(recipe.spec, 1));
  std::vector<int64_t> begun;
  // eight samples together, or two by two
  const auto sums = [&](int64_t by) {
    double sum = 0;
    Denominators whole;
    for (int64_t first = 0; first < 8; first += by)
      whole += objective->denominators(objective->source().train(first, by, begun));
    for (const auto& [decl, weight] : model.weights().all()) weight->dense_tensor().mutable_grad() = Tensor();
    for (int64_t first = 0; first < 8; first += by) {
      const PackedBatch packed = objective->source().train(first, by, begun);
      sum += objective->learn(model, packed, batch_of(packed), {}, whole).at("loss");
    }
    return std::pair(sum / whole.of("loss"),
                     model.weights().all().front().second->dense_tensor().grad().clone());
  };
  const auto [together, gradient] = sums(8);
  const auto [apart, gradient_apart] = sums(2);
  EXPECT_NEAR(together, apart, 1e-5);
  EXPECT_TRUE(at::allclose(gradient, gradient_apart, 1e-4, 1e-6));
}

}  // namespace
}  // namespace tessera::train::noise_training_test
