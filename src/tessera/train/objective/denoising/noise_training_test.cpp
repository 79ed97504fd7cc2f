// Training by questions that are made of a text: spans, prefixes, middles, spoilt copies.
#include <cmath>

#include "tessera/model/padding.h"
#include "tessera/train/objective/denoising/noise.h"
#include "tessera/train/loop/batch_tensors.h"
#include "tessera/train/objective/objective.h"
#include "tessera/train/objective/denoising/noise_testing.h"
#include "tessera/train/runs/run_folder.h"
#include "tessera/train/loop/trainer.h"

namespace tessera::train::noise_training_test {
namespace {

std::vector<Json> recipes(const std::string& file) {
  Json middle_alone = kMiddle;
  middle_alone["loss"] = "middle";
  middle_alone["rate"] = 1;
  return {noise_pair_recipe(file, kSpans),
          noise_pair_recipe(file, kBart),
          noise_pair_recipe(file, kUl2),
          noise_recipe(file, kUl2),
          noise_recipe(file, kMiddle),
          noise_recipe(file, middle_alone),
          noise_recipe(file, {{"type", "prefix_lm"}})};
}

/// A run of 24 steps, and one that is cut on its way, end with the same bits.
void learns_and_goes_on(Json json, const TemporaryFolder& folder, const std::string& name) {
  json["train"]["steps"] = 24;
  json["train"]["accumulate"] = 2;
  json["checkpoint"]["every"] = 11;
  const Recipe recipe = read_recipe(json, "");
  const TrainResult whole = train(recipe, folder / (name + "whole"), {});
  ASSERT_TRUE(whole.last && whole.last->valid_loss && whole.last->accuracy) << name;
  // where nothing is learned it is ln 320, or ln 256
  EXPECT_LT(*whole.last->valid_loss, std::log(256.0) - 0.5) << name;

  CancelToken cancel;
  const auto stop = [&](const LogLine& line, int64_t) {
    if (line.step == 15) cancel.request(15);
  };
  expect_error(ErrorKind::cancelled, "", [&] {
    train(recipe, folder / (name + "cut"), {.cancel = &cancel, .on_step = stop});
  });
  const TrainResult resumed = train(recipe, folder / (name + "cut"), {.resume = true});
  for (const char* part : {"model.safetensors", "optimizer.safetensors"})
    EXPECT_TRUE(read_text_file(checkpoint_folder(folder / (name + "whole"), 24) / part) ==
                read_text_file(checkpoint_folder(folder / (name + "cut"), 24) / part))
        << name << " " << part;
  ASSERT_TRUE(resumed.last && resumed.last->valid_loss);
  EXPECT_EQ(*whole.last->valid_loss, *resumed.last->valid_loss) << name;
  EXPECT_EQ(json.contains("objective"), !whole.last->valid_bits_per_byte) << name;
}

TEST(Noise, LearnsAndGoesOnWithTheSameBits) {
  const TemporaryFolder folder;
  const std::string file = folder.write("a.txt", counting_text(4000));
  int number = 0;
  for (const Json& json : recipes(file))
    learns_and_goes_on(json, folder,
                       json["objective"]["type"].get<std::string>() + std::to_string(number++));
}

TEST(MixedSource, LearnsAndGoesOnWithTheSameBitsWhileTextsGrow) {
  const TemporaryFolder folder;
  const Json mix = {
      {{"train", {folder.write("a.txt", counting_text(4000))}}, {"valid_fraction", 0.1}},
      {{"train", {folder.write("b.jsonl", Json{{"text", counting_text(99)}}.dump() + "\n")}},
       {"format", "jsonl"},
       {"weight", 0.5}}};
  Json json = tiny_recipe("");
  json["data"] = {{"mix", mix}, {"temperature", 2}};
  json["train"]["curriculum"] = {{"from", 4}, {"steps", 18}};
  learns_and_goes_on(json, folder, "text");
  Json spans = noise_recipe("", kSpans);
  spans["data"] = json["data"];
  spans["train"]["curriculum"] = json["train"]["curriculum"];
  learns_and_goes_on(spans, folder, "spans");
}

/// Questions of texts of 1 to 63 tokens.
std::vector<NoisedPiece> questions() {
  std::vector<NoisedPiece> out;
  for (const int64_t n : {1, 7, 63}) {
    DenoisingExample text;
    for (int64_t i = 0; i < n; ++i) {
      text.given.push_back((i * 37 + n) % 300);
      text.asked.push_back((i * 53 + 7 * n) % 300);
    }
    out.push_back({0, std::move(text)});
  }
  return out;
}

/// Rows behind one another, padded behind, with a mask of what they hold.
nn::Batch padded(const std::vector<std::vector<int64_t>>& rows) {
  int64_t longest = 0;
  for (const auto& row : rows) longest = std::max(longest, static_cast<int64_t>(std::ssize(row)));
  const Tensor ids = at::zeros({std::ssize(rows), longest}, at::kLong),
               mask = at::zeros({std::ssize(rows), longest}, at::kLong);
  for (int64_t r = 0; r < std::ssize(rows); ++r) {
    const std::vector<int64_t>& row = rows[static_cast<size_t>(r)];
    ids[r].narrow(0, 0, std::ssize(row)).copy_(at::tensor(row, at::kLong));
    mask[r].narrow(0, 0, std::ssize(row)).fill_(1);
  }
  return model::from_padded(ids, mask);
}

TEST(Noise, AQuestionAloneIsTheSameAmongOthersAndPadded) {
  const auto check = [](const Json& json, const std::optional<int64_t>& start) {
    const Recipe recipe = read_recipe(json, "");
    const model::Model model(recipe.spec, model::Weights::initial(recipe.spec, 3, at::kDouble));
    const auto hidden = [&](const std::vector<NoisedPiece>& pieces) {
      const PackedBatch packed = pack_noised(pieces, start, 64);
      return hidden_of(model, packed, batch_of(packed), {}).detach();
    };
    std::vector<Tensor> alone;
    for (const NoisedPiece& piece : questions()) alone.push_back(hidden({piece}));
    EXPECT_TRUE(at::allclose(hidden(questions()), at::cat(alone), 0, 1e-10));

    const PackedBatch packed = pack_noised(questions(), start, 64);
    std::vector<std::vector<int64_t>> rows;
    std::vector<int64_t> prefixes;
    for (const PackedDocument& piece : packed.pieces) {
      rows.emplace_back(packed.ids.begin() + piece.begin,
                        packed.ids.begin() + piece.begin + piece.length);
      prefixes.push_back(piece.prefix);
    }
    nn::Batch batch = padded(rows);
    model::set_prefixes(batch, at::tensor(prefixes, at::kLong));
    model::ForwardOptions forward;
    std::optional<nn::Encoded> encoded;
    if (start) forward.encoded = &encoded.emplace(model.encode(padded(packed.sources)));
    EXPECT_TRUE(at::allclose(model.hidden(batch, forward), at::cat(alone), 0, 1e-10));
  };
  check(noise_recipe("a.txt", kSpans), std::nullopt);
  check(noise_pair_recipe("a.txt", kSpans), 256);
}

TEST(Noise, WhatIsGivenLaterMovesWhatIsGivenBefore) {
  const Recipe recipe = read_recipe(noise_recipe("a.txt", {{"type", "prefix_lm"}}), "");
  const model::Model model(recipe.spec, model::Weights::initial(recipe.spec, 3));
  const at::NoGradGuard no_gradients;
  const auto hidden = [&](DenoisingExample text) {
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

TEST(Noise, WhatAMixtureDrawsHasLossesOfItsOwn) {
  const TemporaryFolder folder;
  const Recipe recipe =
      read_recipe(noise_pair_recipe(folder.write("a.txt", counting_text(4000)), kUl2), "");
  const auto objective = open_objective(recipe, folder / "cache");
  const model::Model model(recipe.spec, model::Weights::initial(recipe.spec, 1));
  std::vector<int64_t> begun;
  const PackedBatch packed = objective->source().train(0, 12, begun);
  const Denominators whole = objective->denominators(packed);
  const LossSums sums = objective->forward_backward(model, {packed, batch_of(packed), {}, whole});
  double sum = 0, targets = 0;
  for (const char* name : {"prefix_lm_1", "span_corruption_2", "span_corruption_3"}) {
    ASSERT_TRUE(sums.contains(name)) << name;
    sum += sums.at(name);
    targets += whole.of(name);
  }
  EXPECT_NEAR(sum, sums.at("loss"), 1e-6 * sum);
  EXPECT_EQ(targets, static_cast<double>(packed.n_targets));
  // and in evaluation: all of one kind alone is that kind's loss
  const Evaluation all = objective->evaluate(model, {.batch = 4});
  ASSERT_EQ(all.losses.size(), 3u);
  infer::Score of_prefixes;
  for (int64_t sample = 0; sample < objective->source().valid_samples(); ++sample) {
    const PackedBatch one = objective->source().valid({sample});
    if (one.kinds.front() != 0) continue;
    const at::NoGradGuard no_gradients;
    of_prefixes += infer::score(model, hidden_of(model, one, batch_of(one), {}), targets_of(one));
  }
  EXPECT_NEAR(all.losses.at("prefix_lm_1"),
              of_prefixes.nats / static_cast<double>(of_prefixes.targets), 1e-5);
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
    for (const auto& [decl, weight] : model.weights().all())
      weight->dense_tensor().mutable_grad() = Tensor();
    for (int64_t first = 0; first < 8; first += by) {
      const PackedBatch packed = objective->source().train(first, by, begun);
      sum += objective->forward_backward(model, {packed, batch_of(packed), {}, whole}).at("loss");
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
