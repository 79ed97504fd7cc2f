// Images and sounds as training data: what is read, what is learned, gradients through the
// embedding, resume, and refusals.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "tessera/nn/embed/patches.h"
#include "tessera/train/data/image_files.h"
#include "tessera/train/loop/batch_tensors.h"
#include "tessera/train/loop/evaluate_data.h"
#include "tessera/train/loop/trainer.h"
#include "tessera/train/objective/objective.h"
#include "tessera/train/runs/run_folder.h"
#include "tessera/train/train_testing.h"

namespace tessera::train::feature_training_test {
namespace {

namespace fs = std::filesystem;
using spec::Json;

constexpr int64_t kSide = 8;

/// Stripes of two bright pixels over noise: standing for class 1, lying for class 0.
format::Image stripes(int64_t i, int64_t channels = 1) {
  const RandomKey key = RandomKey(7).fold(static_cast<uint64_t>(i));
  const auto phase = static_cast<int64_t>(key.bits(1000) % 4);
  format::Image out{"stripes", kSide, kSide, channels, {}};
  for (int64_t y = 0; y < kSide; ++y)
    for (int64_t x = 0; x < kSide; ++x) {
      const bool bright = ((i % 2 == 1 ? x : y) + phase) % 4 < 2;
      const uint32_t noise = key.bits(static_cast<uint64_t>(y * kSide + x)) % 60;
      for (int64_t c = 0; c < channels; ++c)
        out.pixels.push_back(static_cast<uint8_t>(noise + (bright ? 190 : 0)));
    }
  return out;
}

/// A tone of 400 Hz for class "low", of 2,000 Hz for "high", with noise; 16 bits at 8,000 Hz.
std::string tone(int64_t i, int64_t samples = 1600) {
  const RandomKey key = RandomKey(3).fold(static_cast<uint64_t>(i));
  std::string out = "RIFF";
  const auto add = [&](auto value) {
    out.append(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  const auto bytes = static_cast<uint32_t>(2 * samples);
  add(36 + bytes);
  out += "WAVEfmt ";
  add(uint32_t{16}), add(uint16_t{1}), add(uint16_t{1}), add(uint32_t{8000}), add(uint32_t{16000}),
      add(uint16_t{2}), add(uint16_t{16});
  out += "data";
  add(bytes);
  const double hertz = (i % 2 == 1 ? 2000 : 400) * (1 + 0.2 * key.uniform(0));
  for (int64_t t = 0; t < samples; ++t)
    add(static_cast<int16_t>(8000 * std::sin(2 * M_PI * hertz * static_cast<double>(t) / 8000) +
                             1000 * key.normal(static_cast<uint64_t>(t))));
  return out;
}

Json spec_of(const char* embed, const char* mixer) {
  Json json = json_of(R"({"tessera": 1, "arch": "encoder", "vocab": 1, "d_model": 16,
    "heads": [{"type": "classifier", "n_labels": 2}, {"type": "pooler", "of": "mean"}]})");
  json["embed"] = json_of(embed);
  json["layers"] = {{{"repeat", 2}, {"mixer", json_of(mixer)}}};
  json["ffn"] = {{"type", "mlp"}, {"act", "gelu"}, {"d_hidden", 32}};
  return json;
}

constexpr const char* kPatches =
    R"({"type": "patches", "channels": 1, "patch": 4, "height": 8, "width": 8,
        "class_token": "first", "position": {"type": "learned", "n_positions": 5}})";
constexpr const char* kAttention = R"({"type": "attention", "n_heads": 2})";
constexpr const char* kVisionMamba =
    R"({"type": "bidirectional", "combine": "mean", "share": ["in", "out"],
        "inner": {"type": "mamba", "d_state": 4}})";

Json recipe_of(Json spec, Json data, int64_t steps = 120) {
  Json json = json_of(R"({"objective": {"type": "classification"},
    "train": {"batch": 16, "log_every": 10}, "optimizer": {"lr": 0.01},
    "schedule": {"type": "constant"}})");
  json["spec"] = std::move(spec);
  json["data"] = std::move(data);
  json["train"]["steps"] = steps;
  return json;
}

TrainResult run(const Json& json, const fs::path& folder, const TrainOptions& options = {}) {
  return train(read_recipe(json, ""), folder, options);
}

/// Images in a list with header, as HF's imagefolder has them.
Json image_list(const TemporaryFolder& folder, int64_t n = 120) {
  std::string list = "file_name,label\n";
  for (int64_t i = 0; i < n; ++i) {
    const std::string name = fmt::format("{}.pgm", i);
    folder.write(name, format::pnm_of(stripes(i)));
    list += fmt::format("{},{}\n", name, i % 2);
  }
  return {{"train", {folder.write("metadata.csv", list)}}, {"valid_fraction", 0.2}};
}

TEST(FeatureTraining, AViTLearnsAndIsScored) {
  const TemporaryFolder folder;
  const Json data = image_list(folder);
  const TrainResult result = run(recipe_of(spec_of(kPatches, kAttention), data), folder / "run");
  ASSERT_TRUE(result.last && result.last->accuracy);
  EXPECT_GT(*result.last->accuracy, 0.9);
  // scored from the run's folder alone, with an interval
  DataEvaluationOptions how;
  how.data.model = (folder / "run").string();
  how.data.data = {(folder / "metadata.csv").string()};
  how.cache = folder / "cache";
  const DataEvaluation got = evaluate_data(how);
  EXPECT_EQ(got.examples, 120);
  EXPECT_GT(got.result.accuracy, 0.9);
  EXPECT_LT(got.result.intervals.at("accuracy").low, got.result.accuracy);
  for (const std::string& line : got.said) EXPECT_EQ(line.find("train:"), line.npos) << line;
  // its settings are those of transformers' file
  const auto settings = infer::read_feature_settings(checkpoint_folder(folder / "run", 120));
  EXPECT_EQ(settings->image.height, kSide);
  EXPECT_EQ(settings->image.mean, (std::vector<double>{0.5}));
}

TEST(FeatureTraining, AVisionMambaLearnsFromAFolderOfClasses) {
  const TemporaryFolder folder;
  for (int64_t i = 0; i < 80; ++i) {
    const fs::path own = folder / "data" / (i % 2 == 1 ? "standing" : "lying");
    fs::create_directories(own);
    std::ofstream(own / fmt::format("{}.ppm", i), std::ios::binary)
        << format::pnm_of(stripes(i, 3));
  }
  Json spec = spec_of(
      R"({"type": "patches", "patch": 4, "class_token": "middle",
          "position": {"type": "learned", "n_positions": 5}})",
      kVisionMamba);
  spec["heads"][0]["labels"] = {"lying", "standing"};
  const Json data = {{"train", {(folder / "data").string()}},
                     {"valid_fraction", 0.2},
                     {"image", {{"height", kSide}, {"width", kSide}}}};
  EXPECT_GT(*run(recipe_of(spec, data), folder / "run").last->accuracy, 0.9);
}

TEST(FeatureTraining, SoundsAreLearnedFromFramesAndFromPatches) {
  const TemporaryFolder folder;
  std::string list;
  for (int64_t i = 0; i < 60; ++i) {
    const std::string name = fmt::format("{}.wav", i);
    // some are shorter than 0.2 seconds and padded
    folder.write(name, tone(i, 1200 + 20 * (i % 30)));
    list += Json{{"audio", name}, {"label", i % 2 == 1 ? "high" : "low"}}.dump() + "\n";
  }
  const Json data = {{"train", {folder.write("list.jsonl", list)}},
                     {"valid_fraction", 0.2},
                     {"file_key", "audio"},
                     {"input", "audio"},
                     {"audio", {{"rate", 8000}, {"seconds", 0.2}, {"mels", 16}}}};
  Json frames = spec_of(R"({"type": "frames", "channels": 16})", kAttention);
  Json patches = spec_of(
      R"({"type": "patches", "channels": 1, "patch": 8, "patch_width": 10, "class_token": "middle",
          "position": {"type": "learned", "n_positions": 5}})",
      kVisionMamba);
  int number = 0;
  for (Json* spec : {&frames, &patches}) {
    (*spec)["heads"][0]["labels"] = {"high", "low"};
    const fs::path to = folder / fmt::format("run{}", number++);
    EXPECT_GT(*run(recipe_of(*spec, data, 60), to).last->accuracy, 0.9);
    DataEvaluationOptions how;
    how.data.model = to.string();
    how.data.data = {(folder / "list.jsonl").string()};
    how.cache = folder / "cache";
    EXPECT_GT(evaluate_data(how).result.accuracy, 0.9);
  }
}

// dL in a random direction of the embedding's parameters, by differences of the loss
TEST(FeatureTraining, GradientsReachTheEmbedding) {
  const TemporaryFolder folder;
  for (const char* embed : {kPatches, R"({"type": "frames", "channels": 8, "strides": [1, 2]})"}) {
    const bool sounds = embed != kPatches;
    Json data;
    if (sounds) {
      std::string list;
      for (int64_t i = 0; i < 8; ++i) {
        folder.write(fmt::format("{}.wav", i), tone(i));
        list += fmt::format("{{\"file_name\": \"{}.wav\", \"label\": {}}}\n", i, i % 2);
      }
      data = {{"train", {folder.write("list.jsonl", list)}},
              {"audio", {{"rate", 8000}, {"seconds", 0.2}}}};
    } else {
      data = image_list(folder, 8);
      data.erase("valid_fraction");
    }
    const Recipe recipe = read_recipe(recipe_of(spec_of(embed, kAttention), data), "");
    const auto objective = open_objective(recipe, folder / "cache");
    const model::Model model(recipe.spec, model::Weights::initial(recipe.spec, 5));
    std::vector<int64_t> begun;
    const PackedBatch packed = objective->source().train(0, 8, begun);
    const Denominators whole = objective->denominators(packed);
    const auto loss = [&] {
      return double{objective->forward_backward(model, {packed, batch_of(packed), {}, whole})
                        .at("loss")} /
             whole.of("loss");
    };
    for (const auto& [decl, weight] : model.weights().all())
      Tensor(weight->dense_tensor()).mutable_grad() = Tensor();
    loss();
    // further passes add to them
    std::map<std::string, Tensor> grads;
    for (const auto& [decl, weight] : model.weights().all())
      if (decl.name.starts_with("embed.")) {
        ASSERT_TRUE(weight->dense_tensor().grad().defined()) << decl.name;
        grads[decl.name] = weight->dense_tensor().grad().to(at::kDouble, false, /*copy=*/true);
      }
    for (const auto& [decl, weight] : model.weights().all()) {
      if (!decl.name.starts_with("embed.")) continue;
      Tensor w = weight->dense_tensor();
      const Tensor grad = grads.at(decl.name);
      const auto norm = grad.norm().item<double>();
      const Tensor along = grad / norm;
      // the loss moves by 2e-4, above what float32 rounds; a norm layer follows the short vectors
      // of fresh embeddings, so that long steps leave the slope
      const double size = std::min(2e-3, 1e-4 / norm);
      const at::NoGradGuard no_gradients;
      const Tensor before = w.detach().clone();
      const auto moved = [&](double step) {
        w.copy_(before.to(at::kDouble) + step * along);
        const at::AutoGradMode gradients(true);
        return loss();
      };
      const double slope = (moved(size) - moved(-size)) / (2 * size);
      w.copy_(before);
      EXPECT_GT(norm, 1e-4) << decl.name;
      EXPECT_NEAR(slope / norm, 1, 0.03) << decl.name << ", norm " << norm;
    }
  }
}

TEST(FeatureTraining, ResumesBitForBitWithAugmentation) {
  const TemporaryFolder folder;
  Json data = image_list(folder, 40);
  data["augment"] = {{"flip", true}, {"crop_padding", 2}};
  Json json = recipe_of(spec_of(kPatches, kAttention), data, 12);
  run(json, folder / "whole");
  CancelToken cancel;
  const auto stop = [&](const LogLine& line, int64_t) {
    if (line.step == 7) cancel.request(15);
  };
  json["train"]["log_every"] = 1;
  expect_error(ErrorKind::cancelled, "",
               [&] { run(json, folder / "cut", {.cancel = &cancel, .on_step = stop}); });
  run(json, folder / "cut", {.resume = true});
  for (const char* file : {"model.safetensors", "optimizer.safetensors"})
    EXPECT_TRUE(read_text_file(checkpoint_folder(folder / "whole", 12) / file) ==
                read_text_file(checkpoint_folder(folder / "cut", 12) / file))
        << file;
  // another image is other data
  folder.write("3.pgm", format::pnm_of(stripes(17)));
  json["train"]["steps"] = 13;
  expect_error(ErrorKind::spec, "data.train", [&] { run(json, folder / "cut", {.resume = true}); });
}

TEST(FeatureTraining, AugmentationMovesAndMirrors) {
  nn::PatchesConfig embed;
  embed.channels = 1;
  embed.patch = embed.patch_width = embed.stride = embed.stride_width = 2;
  infer::FeatureSettings settings;
  settings.image = {.height = 2, .width = 2, .mean = {0}, .std = {1}};
  const StoredFeature stored{.shape = {1, 2, 2}, .tokens = 1, .pixels = {0, 51, 102, 255}};
  const std::vector<float> plain{0, 0.2F, 0.4F, 1}, mirrored{0.2F, 0, 1, 0.4F};
  const FeatureMaker flips(embed, settings, {.flip = true}, 9);
  EXPECT_EQ(flips.input(stored, std::nullopt).values, plain);
  int as_it_is = 0, other = 0;
  for (uint64_t i = 0; i < 100; ++i) {
    const auto got = flips.input(stored, RandomKey(1).fold(i)).values;
    as_it_is += got == plain ? 1 : 0;
    other += got == mirrored ? 1 : 0;
  }
  EXPECT_EQ(as_it_is + other, 100);
  EXPECT_NEAR(as_it_is, 50, 20);
  // crops of an image with a border of one pixel: 9 places
  const FeatureMaker crops(embed, settings, {.crop_padding = 1}, 9);
  std::set<std::vector<float>> seen;
  for (uint64_t i = 0; i < 300; ++i) seen.insert(crops.input(stored, RandomKey(1).fold(i)).values);
  EXPECT_EQ(seen.size(), 9U);
}

/// The one sample of a data set.
FeatureInput first_input(const Json& spec, const Json& data) {
  const TemporaryFolder cache;
  const Recipe recipe = read_recipe(recipe_of(spec, data), "");
  std::vector<int64_t> begun;
  return open_objective(recipe, cache.path())->source().train(0, 1, begun).features.at(0);
}

TEST(FeatureTraining, FilesOfCifarAndIdx) {
  const TemporaryFolder folder;
  std::string record(1, '\1');
  for (int i = 0; i < 3 * 1024; ++i) record += static_cast<char>(i % 251);
  Json spec = spec_of(R"({"type": "patches", "patch": 16, "height": 32, "width": 32})", kAttention);
  Json data = {{"train", {folder.write("batch.bin", record)}},
               {"image", {{"mean", {0, 0, 0.5}}, {"std", 1}}}};
  for (const bool fine : {false, true}) {
    if (fine)
      data = {{"train", {folder.write("batch.bin", std::string(1, '\7') + record)}},
              {"format", "cifar100"},
              {"image", {{"mean", {0, 0, 0.5}}, {"std", {1, 1, 1}}}}};
    else
      data["image"]["std"] = {1.0};
    const FeatureInput input = first_input(spec, data);
    EXPECT_EQ(input.shape, (std::vector<int64_t>{3, 32, 32}));
    EXPECT_FLOAT_EQ(input.values[5], 5 / 255.0F);
    EXPECT_FLOAT_EQ(input.values[1024], (1024 % 251) / 255.0F);
    EXPECT_FLOAT_EQ(input.values[2048], (2048 % 251) / 255.0F - 0.5F);
  }
  // MNIST: labels in a file of their own
  std::vector<uint8_t> pixels(64);
  for (size_t i = 0; i < 64; ++i) pixels[i] = static_cast<uint8_t>(i);
  data = {{"train", {folder.write("train-images-idx3-ubyte", idx_images({pixels}, kSide))}},
          {"train_labels", {folder.write("train-labels-idx1-ubyte", idx_labels({1}))}},
          {"image", {{"mean", {0}}, {"std", {1}}}}};
  EXPECT_FLOAT_EQ(first_input(spec_of(kPatches, kAttention), data).values[63], 63 / 255.0F);
}

TEST(FeatureTraining, RefusesInOneLine) {
  const TemporaryFolder folder;
  const Json spec = spec_of(kPatches, kAttention);
  const auto refusal = [&](const Json& data, const char* patch = "{}") {
    Json json = recipe_of(spec, data);
    json.merge_patch(json_of(patch));
    const std::string message = test::error_of([&] { run(json, folder / "run"); });
    EXPECT_TRUE(checkpoint_steps(folder / "run").empty());
    EXPECT_EQ(message.find('\n'), message.npos);
    return message;
  };
  const auto has = [](const std::string& message, std::string_view part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  const auto list = [&](const std::string& name, const std::string& label) {
    return Json{{"train", {folder.write("list.csv", "file_name,label\n" + name + "," + label)}}};
  };
  folder.write("good.pgm", format::pnm_of(stripes(0)));
  folder.write("jpeg.pgm", "\xFF\xD8\xFF");
  folder.write("cut.pgm", format::pnm_of(stripes(0)).substr(0, 40));
  has(refusal(list("jpeg.pgm", "0")), "jpeg.pgm: found JPEG; expected PNG, PPM or PGM");
  has(refusal(list("cut.pgm", "0")), "8 x 8 pixels of 1 channels in 40 bytes");
  has(refusal(list("none.pgm", "0")), "none.pgm");
  has(refusal(list("good.pgm", "2")), "class \"2\" is unknown; expected one of \"0\", \"1\"");
  has(refusal(list("", "0")), "\"file_name\" is \"\"; expected the path of a file");
  has(refusal({{"train", {folder.write("l.csv", "name,label\ngood.pgm,0")}}}),
      "no \"file_name\"; found \"name\", \"label\"; expected the path of a file there, or "
      "data.file_key");
  has(refusal({{"train", {folder.write("a.bin", "abc")}}}),
      "3 bytes; expected records of 3073 (CIFAR-10, binary version)");
  has(refusal({{"train", {folder.write("a-idx3-ubyte", "abc")}}}), "no IDX file of images");
  has(refusal({{"train", {folder.write("z-idx3-ubyte", "\x1F\x8B\b\b")}}}), "gunzip unpacks it");
  has(refusal({{"train", {folder.write("a.txt", "abc")}}}), "[data.input] has no meaning");
  has(refusal({{"train", {(folder / "none").string()}}, {"format", "folder"}}),
      "expected one with a folder for each class");
  has(refusal(list("good.pgm", "0"), R"({"data": {"image": {"height": 9}}})"),
      "[data.image.height] found 9; the spec's embedding has 8");
  has(refusal(list("good.pgm", "0"), R"({"data": {"image": {"std": [0]}}})"), "numbers above 0");
  has(refusal(list("good.pgm", "0"), R"({"data": {"image": {"mean": [0, 0]}}})"),
      "2 numbers; expected one, or 1");
  has(refusal(list("good.pgm", "0"), R"({"data": {"input": "audio", "audio": {"seconds": 1}}})"),
      "inputs of shape [1, 8, 100]; expected [1, 8, 8] (the spec's embedding)");
  has(refusal(list("good.pgm", "0"), R"({"objective": {"type": "token_classification"}})"),
      "reads no tokens");
  // of any size, the image decides
  Json variable =
      recipe_of(spec_of(R"({"type": "patches", "channels": 1, "patch": 4})", kAttention),
                list("good.pgm", "0"));
  variable["train"]["length"] = 3;
  has(test::error_of([&] { run(variable, folder / "run"); }),
      "pixel_values [1, 8, 8] are 4 tokens; expected at most train.length = 3");
}

TEST(FeatureTraining, RefusesSoundsThatItCannotRead) {
  const TemporaryFolder folder;
  Json data = {{"train", {folder.write("list.csv", "file_name,label\na.wav,0")}},
               {"audio", {{"seconds", 0.2}}}};
  const Json spec = spec_of(R"({"type": "frames", "channels": 8})", kAttention);
  const auto refusal = [&](const std::string& sound) {
    folder.write("a.wav", sound);
    return test::error_of([&] { run(recipe_of(spec, data), folder / "run"); });
  };
  EXPECT_NE(refusal(tone(0)).find("a.wav: 8000 Hz; expected 16000 (data.audio.rate"),
            std::string::npos);
  data["audio"] = {{"rate", 8000}};
  // without a length of all, train.length is missing
  EXPECT_NE(refusal(tone(0)).find("length"), std::string::npos) << refusal(tone(0));
  data["audio"]["seconds"] = 0.2;
  EXPECT_NE(refusal(tone(0).substr(0, 100)).find("a.wav"), std::string::npos);
  EXPECT_NE(refusal("RIFX").find("a.wav"), std::string::npos);
  data["audio"]["seconds"] = 0.001;
  EXPECT_NE(refusal(tone(0)).find("expected"), std::string::npos);
}

}  // namespace
}  // namespace tessera::train::feature_training_test
