#include "tessera/train/loop/adapter.h"

#include <numeric>

#include "tessera/format/safetensors.h"
#include "tessera/infer/loading/adapter.h"
#include "tessera/infer/loading/load_model.h"
#include "tessera/train/objective/objective.h"
#include "tessera/train/gguf_testing.h"
#include "tessera/train/runs/run_folder.h"
#include "tessera/train/train_testing.h"
#include "tessera/train/loop/trainer.h"

namespace tessera::train::adapter_test {
namespace {

namespace fs = std::filesystem;

/// A run, and adapters that are trained beside the model that it ends with, on another text.
struct Setting {
  TemporaryFolder folder;
  Json base = tiny_recipe(folder.write("text.txt", counting_text(3000)));
  Json json;

  Setting() {
    train::train(read_recipe(base, ""), folder / "base");
    json = base;
    json.erase("spec");
    std::string other;
    while (other.size() < 3000) other += "what another text says ";
    json["data"]["train"] = {folder.write("other.txt", other)};
    json["init"] = {{"from", (folder / "base").string()}};
    json["adapter"] = {
        {"rank", 2}, {"alpha", 4}, {"dropout", 0.1}, {"targets", {"mixer.q", "down"}}};
    json["optimizer"]["groups"] = {{{"match", {"*.lora_b"}}, {"lr_factor", 2}}};
  }
  fs::path run(const std::string& name) const { return folder / name; }
  TrainResult train(const std::string& name,
                    const TrainOptions& options = {},
                    const std::vector<std::string>& overrides = {}) const {
    return train::train(read_recipe(json, "", overrides), run(name), options);
  }
};

TEST(AdapterRun, TrainsTheProductsAlone) {
  const Setting s;
  const fs::path model = s.run("base") / "latest/model.safetensors";
  const std::string before = read_text_file(model);
  std::vector<std::string> lines;
  std::vector<double> losses;
  s.train("a",
          {.on_step = [&](const LogLine& line, int64_t) { losses.push_back(line.loss); },
           .on_start = [&](const std::string& line) { lines.push_back(line); }},
          {"train.steps=40", "adapter.targets=[]"});
  EXPECT_LT(losses.back(), losses.front() - 0.5);
  EXPECT_TRUE(read_text_file(model) == before);
  // 2 layers of q, k, v, o [16, 16] and gate, up [32, 16], down [16, 32], each 2 (in + out)
  ASSERT_EQ(lines.size(), 3u);  // and the defaults in force and the optimizer state
  EXPECT_TRUE(lines.front().starts_with("trainable parameters: 1088 of ")) << lines.front();
  EXPECT_NE(lines.front().find(" %), in 14 matrices; base model "), std::string::npos)
      << lines.front();
  EXPECT_TRUE(lines.front().ends_with(" frozen")) << lines.front();
  const fs::path checkpoint = s.run("a") / "latest";
  EXPECT_FALSE(fs::exists(checkpoint / "model.safetensors"));
  const format::TensorFile kept = format::open_safetensors(checkpoint / infer::kAdapterFile);
  EXPECT_EQ(kept.tensors().size(), 28u);
  EXPECT_LT(fs::file_size(checkpoint / infer::kAdapterFile), 20000u);
}

TEST(AdapterRun, WhatItBeginsFromMayBeNamedLater) {
  const TemporaryFolder folder;
  const std::string file = gguf_file(folder, DType::q8_0).string();
  const Json json = {{"init", {{"from", "nowhere"}}},
                     {"data", {{"type", "copying"}, {"items", 4}, {"valid", 8}}},
                     {"train", {{"steps", 1}, {"batch", 1}, {"length", 24}}}};
  expect_error(ErrorKind::file, "nowhere", [&] { read_recipe(json, ""); });
  const Recipe recipe = read_recipe(json, "", {"spec.context=48", "init.from=" + file});
  EXPECT_EQ(recipe.init->from, file);
  EXPECT_EQ(recipe.spec.context, 48);
}

TEST(AdapterRun, LeavesTheBlocksOfAGgufFileAsTheyAre) {
  const TemporaryFolder folder;
  const fs::path file = gguf_file(folder, DType::q8_0);
  const std::string before = read_text_file(file);
  const Recipe recipe =
      read_recipe({{"init", {{"from", file.string()}}},
                   {"adapter", {{"rank", 4}}},
                   {"data", {{"type", "copying"}, {"items", 4}, {"valid", 8}}},
                   {"train", {{"steps", 30}, {"batch", 8}, {"length", 24}, {"log_every", 1}}},
                   {"optimizer", {{"lr", 0.01}, {"weight_decay", 0}}},
                   {"schedule", {{"type", "constant"}}}},
                  "");
  const AdapterInit start = adapter_start(recipe.model_plan());
  int64_t blocks = 0;
  for (const auto& [decl, weight] : start.model.weights().all()) {
    const model::WeightPtr base = weight->parts() != nullptr ? weight->parts()->w : weight;
    EXPECT_FALSE(base->dense_tensor().defined()) << decl.name << " is a copy";
    blocks += base->dtype() == DType::q8_0 ? 1 : 0;
  }
  EXPECT_GT(blocks, 8);
  std::vector<double> losses;
  train::train(recipe, folder / "run",
               {.on_step = [&](const LogLine& line, int64_t) { losses.push_back(line.loss); }});
  EXPECT_LT(losses.back(), losses.front() - 0.3);
  EXPECT_TRUE(read_text_file(file) == before);
}

TEST(AdapterRun, IsWhatStandsBesideTheModelAfterwards) {
  const Setting s;
  const TrainResult result = s.train("a");
  ASSERT_TRUE(result.last && result.last->valid_loss);
  // the model as it is, with the adapter of the run, loses as much in a run that learns nothing
  const infer::LoadedModel plain = infer::load_model(s.run("base") / "latest");
  const convert::Checkpoint sum = infer::with_merged_adapter(plain.source, s.run("a"));
  convert::write_tessera_folder(sum, s.run("merged"));
  Json again = s.json;
  again.erase("adapter");
  again["optimizer"] = {{"lr", 0}};
  again["init"] = {{"from", s.run("merged").string()}};
  again["data"]["tokenizer"] = "bytes";
  again["train"]["steps"] = 1;
  again["schedule"] = {{"type", "constant"}};
  const TrainResult merged = train::train(read_recipe(again, ""), s.run("b"));
  ASSERT_TRUE(merged.last && merged.last->valid_loss);
  EXPECT_NEAR(*merged.last->valid_loss, *result.last->valid_loss, 1e-5);
}

TEST(AdapterRun, GoesOnBitForBit) {
  const Setting s;
  s.train("whole");
  bool cut = false;
  CancelToken stop;
  try {
    s.train("cut", {.cancel = &stop, .on_step = [&](const LogLine& line, int64_t) {
                      if (line.step == 7) stop.request();
                    }});
  } catch (const Error& error) {
    cut = error.kind() == ErrorKind::cancelled;
  }
  ASSERT_TRUE(cut);
  s.train("cut", {.resume = true});
  for (const char* file : {infer::kAdapterFile, "optimizer.safetensors"})
    EXPECT_TRUE(read_text_file(s.run("whole") / "step-12" / file) ==
                read_text_file(s.run("cut") / "step-12" / file))
        << file;
  // another factor is another run
  expect_error(ErrorKind::spec, "\"adapter.rslora\" differs",
               [&] { s.train("cut", {.resume = true}, {"adapter.rslora=true"}); });
}

/// The other kinds, each with what its first line says.
struct Kind {
  const char* name;
  Json adapter;
  const char* begin;  // of the line that says what trains, and what stands within
  const char* within;
};

class AdapterKind : public ::testing::TestWithParam<Kind> {};

TEST_P(AdapterKind, TrainsGoesOnBitForBitAndStandsBesideTheModel) {
  Setting s;
  // one that has learned something, so that what its layers do matters
  Json taught = s.base;
  taught["train"]["steps"] = 60;
  taught["optimizer"] = {{"lr", 0.03}};
  train::train(read_recipe(taught, ""), s.run("taught"));
  s.json["init"] = {{"from", s.run("taught").string()}};
  s.json["adapter"] = GetParam().adapter;
  s.json["optimizer"] = {{"lr", 0.05}, {"weight_decay", 0}};
  s.json["train"]["steps"] = 30;
  const fs::path model = s.run("taught") / "latest/model.safetensors";
  const std::string before = read_text_file(model);
  std::vector<std::string> lines;
  std::vector<double> losses;
  const TrainResult result = s.train(
      "whole", {.on_step = [&](const LogLine& line, int64_t) { losses.push_back(line.loss); },
                .on_start = [&](const std::string& line) { lines.push_back(line); }});
  ASSERT_EQ(lines.size(), 3u);  // and which defaults are in force
  const auto any = [&](const std::string& begin) {
    return std::ranges::any_of(lines, [&](const auto& line) { return line.starts_with(begin); });
  };
  EXPECT_TRUE(any(GetParam().begin)) << lines.front();
  EXPECT_NE(lines.front().find(GetParam().within), std::string::npos) << lines.front();
  EXPECT_TRUE(any("optimizer state: ")) << lines.back();
  const auto mean = [](auto begin) { return std::accumulate(begin, begin + 5, 0.0) / 5; };
  EXPECT_LT(mean(losses.end() - 5), mean(losses.begin()) - 0.1);
  EXPECT_TRUE(read_text_file(model) == before);
  // cut and gone on with
  CancelToken stop;
  expect_error(ErrorKind::cancelled, "", [&] {
    s.train("cut", {.cancel = &stop, .on_step = [&](const LogLine& line, int64_t) {
                      if (line.step == 7) stop.request();
                    }});
  });
  s.train("cut", {.resume = true});
  for (const char* file : {infer::kAdapterFile, "optimizer.safetensors"})
    EXPECT_TRUE(read_text_file(s.run("whole") / "latest" / file) ==
                read_text_file(s.run("cut") / "latest" / file))
        << file;
  // a run that learns nothing beside the same model, from the adapter that was trained
  ASSERT_TRUE(result.last && result.last->valid_loss);
  const infer::LoadedModel adapted =
      infer::load_model(s.run("taught") / "latest", {}, s.run("whole"));
  const auto objective = open_objective(read_recipe(s.json, ""), s.run("cache"));
  const Evaluation again = objective->evaluate(adapted.model, {.batch = 4});
  EXPECT_NEAR(again.loss, *result.last->valid_loss, 1e-6);
}

INSTANTIATE_TEST_SUITE_P(
    All,
    AdapterKind,
    ::testing::Values(
        Kind{"dora",
             {{"type", "dora"}, {"rank", 2}, {"dropout", 0.1}, {"targets", {"mixer.q", "down"}}},
             "trainable parameters: 384 of ",
             " %), in 4 matrices; base model "},
        Kind{"ia3",
             {{"type", "ia3"}},
             "trainable parameters: 128 of ",
             " %), in 6 matrices; base model "},
        Kind{"prefix",
             {{"type", "prefix"}, {"tokens", 3}},
             "trainable parameters: 192 of ",
             " %), 3 virtual tokens in front of every document; "},
        Kind{"prompt",
             {{"type", "prompt"}, {"tokens", 4}, {"text", "say"}},
             "trainable parameters: 64 of ",
             " %), 4 virtual tokens in front of every document; "},
        Kind{"whole",
             {{"type", "lora"}, {"rank", 1}, {"targets", {"mixer.q"}}, {"save", {"*norm*"}}},
             "trainable parameters: 144 of ",
             " %), in 2 matrices, 5 parameter tensors in full; "}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(AdapterRun, OfAnotherModelUnderTheSameNameIsNotGoneOnWith) {
  const Setting s;
  s.train("a", {}, {"schedule.type=constant", "schedule.warmup=0"});
  // other weights of the same spec take the place of those that it was trained beside
  fs::remove_all(s.run("base"));
  Json other = s.base;
  other["train"]["seed"] = 5;
  train::train(read_recipe(other, ""), s.run("base"));
  expect_error(ErrorKind::usage, "was trained on other weights: \"", [&] {
    s.train("a", {.resume = true},
            {"schedule.type=constant", "schedule.warmup=0", "train.steps=20"});
  });
}

TEST(AdapterRun, KeysOfOtherTypesAreRefused) {
  const Setting s;
  const auto refuses = [&](const std::string& message, const Json& adapter) {
    Json json = s.json;
    json["adapter"] = adapter;
    expect_error(ErrorKind::spec, message, [&] { read_recipe(json, ""); });
  };
  refuses("[adapter] unknown key \"rslora\"", {{"type", "ia3"}, {"rslora", true}});
  refuses("[adapter] unknown key \"targets\"", {{"type", "prompt"}, {"targets", {"mixer.q"}}});
  refuses("[adapter] unknown key \"text\"", {{"type", "prefix"}, {"text", "x"}});
  Json json = s.json;
  json["adapter"] = {{"type", "prefix"}};
  json["train"]["early_exit"] = {{"scale", 0.2}};
  expect_error(ErrorKind::spec, "[train.early_exit] not available with virtual tokens",
               [&] { read_recipe(json, ""); });
  json = s.json;
  json["adapter"] = {{"type", "lora"}, {"save", {"nobody.*"}}};
  expect_error(ErrorKind::usage, "save \"nobody.*\" names no parameter",
               [&] { train::train(read_recipe(json, ""), s.run("x")); });
}

TEST(AdapterRun, ScalesByTheRootOfTheRankWhereAsked) {
  const Setting s;
  const auto scale = [&](const std::vector<std::string>& overrides) {
    return adapter_start(read_recipe(s.json, "", overrides).model_plan()).adapters.front().scale;
  };
  EXPECT_DOUBLE_EQ(scale({"adapter.rank=4"}), 1);
  EXPECT_DOUBLE_EQ(scale({"adapter.rank=4", "adapter.rslora=true"}), 2);
}

TEST(AdapterRun, RefusesWhatItCannotStandBeside) {
  const Setting s;
  const auto refuses = [&](ErrorKind kind, const std::string& message,
                           const std::vector<std::string>& overrides) {
    expect_error(kind, message, [&] { s.train("x", {}, overrides); });
  };
  refuses(ErrorKind::spec, "[init.partial] true with an adapter", {"init.partial=true"});
  refuses(ErrorKind::spec, "[adapter.dropout] found 1; expected less than 1",
          {"adapter.dropout=1"});
  refuses(ErrorKind::usage, "target \"mixer.x\" names no matrix",
          {"adapter.targets=[\"mixer.x\"]"});
  refuses(ErrorKind::usage, "rank = 17 of layers.0.mixer.q.weight [16, 16]; expected 1 to 16",
          {"adapter.rank=17"});
  Json alone = s.base;
  alone["adapter"] = Json::object();
  expect_error(ErrorKind::spec, "[adapter] given without \"init\"",
               [&] { read_recipe(alone, ""); });
}

}  // namespace
}  // namespace tessera::train::adapter_test
