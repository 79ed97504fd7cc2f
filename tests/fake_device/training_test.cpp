// Training on another device: the CPU's losses, checkpoints that any device resumes, and one read a
// step.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "fake_device/fake_device.h"
#include "tessera/train/loop/trainer.h"
#include "tessera/train/objective/denoising/noise_testing.h"
#include "tessera/train/runs/run_folder.h"

namespace tessera::train::training_device_test {
namespace {

namespace fs = std::filesystem;

class TrainingOnDevice : public testing::Test {
 protected:
  static void SetUpTestSuite() { fake_device::install(); }

  struct Losses {
    std::vector<double> steps, norms, valid;
  };
  /// The run in folder `name` from its newest checkpoint on.
  Losses run(const std::string& name,
             at::Device device,
             const std::vector<std::string>& changes,
             const std::function<void(int64_t)>& after = {}) {
    Losses out;
    train(read_recipe(json_, "", changes), folder_ / name,
          {.resume = true, .device = device, .on_step = [&](const LogLine& line, int64_t) {
             out.steps.push_back(line.loss);
             out.norms.push_back(line.grad_norm);
             if (line.valid_loss) out.valid.push_back(*line.valid_loss);
             if (after) after(line.step);
           }});
    return out;
  }
  /// The run on both devices; their losses and norms agree.
  void expect_same(const std::string& name, const std::vector<std::string>& changes = {}) {
    SCOPED_TRACE(name);
    const Losses want = run(name + " cpu", at::kCPU, changes),
                 got = run(name + " device", there_, changes);
    const auto close = [](const std::vector<double>& a, const std::vector<double>& b,
                          const char* what) {
      ASSERT_EQ(a.size(), b.size()) << what;
      for (size_t i = 0; i < a.size(); ++i)
        EXPECT_NEAR(a[i], b[i], 1e-5 * std::max(1.0, b[i])) << what << " " << i;
    };
    close(got.steps, want.steps, "loss");
    close(got.norms, want.norms, "norm");
    close(got.valid, want.valid, "validation loss");
  }

  const at::Device there_ = fake_device::device();
  TemporaryFolder folder_;
  Json json_ = tiny_recipe(folder_.write("text.txt", counting_text(4000)));
};

TEST_F(TrainingOnDevice, LossesOfEveryRuleAreThoseOfTheCpu) {
  for (const char* rule :
       {R"({"type": "adamw", "lr": 0.01})", R"({"type": "adam", "lr": 0.01, "weight_decay": 0.1})",
        R"({"type": "sgd", "lr": 0.1, "momentum": 0.9, "nesterov": true, "weight_decay": 0.1})",
        R"({"type": "sgd", "lr": 0.1, "momentum": 0.5, "dampening": 0.2})",
        R"({"type": "sgd", "lr": 0.1, "momentum": 0})", R"({"type": "lion", "lr": 0.003})"}) {
    json_["optimizer"] = json_of(rule);
    expect_same(rule, {"train.steps=20"});
  }
}

TEST_F(TrainingOnDevice, OptionsOfTrainingAreThoseOfTheCpu) {
  json_["train"]["steps"] = 5;
  json_["optimizer"]["groups"] = json_of(
      R"([{"match": ["*.q.weight"], "lr_factor": 0.5}, {"match": ["*.k.weight"], "frozen": true},
          {"match": ["*norm*"], "optimizer": {"type": "sgd", "lr": 0.1}}])");
  expect_same("groups");
  json_["optimizer"].erase("groups");
  expect_same("accumulation", {"train.accumulate=2", "train.clip_norm=0.5"});
  expect_same("losses", {"train.z_loss=0.01", "train.l2_wrap=0.001",
                         R"(train.label_smoothing={"share": 0.1})"});
  expect_same("checkpointing", {R"(train.recompute={"of": "layers"})"});
  expect_same("watch", {"watch.norms=2", "watch.noise_scale=2", "train.accumulate=2"});
  expect_same("dropout", {R"(spec.residual={"type": "pre_norm", "dropout": 0.2})",
                          R"(spec.layers[0].mixer={"type": "attention", "n_heads": 2,
                             "position": "rope", "dropout": 0.3})"});
  expect_same("early exit", {R"(train.early_exit={"scale": 0.2})"});
  expect_same("balanced experts",
              {R"(spec.ffn={"type": "moe", "n_experts": 4, "expert": {"type": "glu", "d_hidden": 8},
                            "router": {"type": "top_k", "k": 2, "score": "sigmoid", "balance": true}})"});
  for (const char* predictors :
       {R"([{"repeat": 2, "layers": [{"mixer": {"type": "attention", "n_heads": 2}}]}])",
        R"([{"repeat": 2, "reads": "trunk", "token": false,
             "layers": [{"mixer": {"type": "attention", "n_heads": 2}}]}])"}) {
    json_["spec"]["predictors"] = json_of(predictors);
    expect_same(predictors);
  }
}

TEST_F(TrainingOnDevice, ObjectivesOfTokensAreThoseOfTheCpu) {
  const std::string text = folder_ / "text.txt";
  const auto with = [&](Json json, const std::string& name) {
    json_ = std::move(json);
    json_["train"]["steps"] = 4;
    expect_same(name);
  };
  with(noise_pair_recipe(text, kSpans), "span corruption");
  with(noise_recipe(text, kMiddle), "fill in the middle");
  Json encoder = tiny_recipe(text);
  encoder["spec"]["arch"] = "encoder";
  encoder["spec"]["vocab"] = 257;
  encoder["spec"]["head"] = {{"type", "masked_lm"}};
  for (const char* type : {"masked_lm", "permutation"}) {
    encoder["objective"] = {{"type", type}, {"mask_id", 256}, {"rate", 0.25}};
    with(encoder, type);
  }
  std::string pairs, talks;
  for (int i = 0; i < 60; ++i) {
    const std::string word(static_cast<size_t>(1 + i % 4), static_cast<char>('a' + i % 5));
    pairs += Json{{"in", word + word}, {"out", word}}.dump() + "\n";
    talks += Json{{"messages",
                   {{{"role", "user"}, {"content", word}},
                    {{"role", "assistant"}, {"content", word + "!"}}}}}
                 .dump() +
             "\n";
  }
  Json lengths = tiny_recipe(folder_.write("pairs.jsonl", pairs));
  lengths["spec"] = json_of(R"({"tessera": 1, "arch": "encoder_decoder", "vocab": 257,
    "d_model": 16, "mask": 256,
    "mixer": {"type": "attention", "n_heads": 2, "position": "rope"},
    "ffn": {"type": "glu", "d_hidden": 32}, "cross": {"type": "cross_attention", "n_heads": 2},
    "stacks": {"encoder": {"layers": [{}], "heads": [{"type": "classifier", "n_labels": 8},
                                                     {"type": "pooler", "of": "mean"}]},
               "decoder": {"layers": [{}]}}})");
  lengths["data"]["format"] = "jsonl";
  lengths["data"]["source_key"] = "in";
  lengths["data"]["text_key"] = "out";
  lengths["objective"] = {{"type", "mask_predict"}};
  with(lengths, "mask predict");
  Json chat = tiny_recipe(folder_.write("talks.jsonl", talks));
  chat["data"]["format"] = "jsonl";
  chat["train"]["length"] = 80;
  chat["objective"] = {{"type", "chat"}, {"format", "chatml"}};
  with(chat, "chat");
}

TEST_F(TrainingOnDevice, AStepReadsItsLossAndNormAtOnce) {
  // the first two steps look at the gradients and weights (FirstUpdates)
  run("a", there_,
      {"train.steps=8", "train.eval_every=0", "train.accumulate=2", "data.valid_fraction=0",
       "checkpoint.every=0"},
      [](int64_t step) {
        const fake_device::Counts counts = fake_device::counts();
        if (step > 4) {
          EXPECT_EQ(counts.scalars, 0) << step;
          EXPECT_EQ(counts.to_host, 1) << step;
        }
        fake_device::reset_counts();
      });
}

TEST_F(TrainingOnDevice, AnyDeviceResumesACheckpoint) {
  const std::vector<std::string> half{"train.steps=10"}, whole{"train.steps=20"};
  json_["schedule"] = {{"type", "constant"}};
  json_["train"]["eval_every"] = 0;
  const Losses cpu = run("cpu", at::kCPU, whole), device = run("device", there_, whole);
  const auto resumed = [&](const std::string& name, at::Device first, at::Device then) {
    run(name, first, half);
    return run(name, then, whole).steps;
  };
  const auto rest = [](const Losses& of) {
    return std::vector<double>(of.steps.begin() + 10, of.steps.end());
  };
  EXPECT_EQ(resumed("on the device", there_, there_), rest(device));
  const std::vector<double> up = resumed("up", at::kCPU, there_),
                            down = resumed("down", there_, at::kCPU);
  ASSERT_EQ(up.size(), 10u);
  ASSERT_EQ(down.size(), 10u);
  for (size_t i = 0; i < 10; ++i) {
    EXPECT_NEAR(up[i], rest(cpu)[i], 1e-5);
    EXPECT_NEAR(down[i], rest(cpu)[i], 1e-5);
  }
}

TEST_F(TrainingOnDevice, LossesThatAreNotFiniteStopARun) {
  for (const at::Device device : {at::Device(at::kCPU), there_})
    test::expect_error(ErrorKind::input, "lower optimizer.lr", [&] {
      run("bad " + device.str(), device,
          {R"(optimizer={"type": "sgd", "lr": 1e30})", "train.clip_norm=0"});
    });
}

TEST_F(TrainingOnDevice, WhatACpuAloneTrainsIsRefused) {
  const auto refused = [&](const char* reason, const std::vector<std::string>& changes) {
    SCOPED_TRACE(reason);
    test::expect_error(ErrorKind::usage, reason, [&] { run("refused", there_, changes); });
    EXPECT_FALSE(fs::exists(folder_ / "refused"));
  };
  refused(
      "[device] fake:0: optimizer \"muon\" computes on a CPU; expected \"adamw\", \"adam\", "
      "\"sgd\" or \"lion\", or device cpu",
      {R"(optimizer={"type": "muon"})"});
  refused("moments \"int8\"", {R"(optimizer={"type": "adamw", "moments": "int8"})"});
  refused("optimizer.average", {R"(optimizer.average={"decay": 0.9})"});
  refused("train.windows \"carried\"",
          {R"(train={"steps": 2, "batch": 1, "length": 16, "windows": "carried",
                     "carry_limit": 64})"});
  run("base", at::kCPU, {"train.steps=1"});
  json_.erase("spec");
  json_["init"] = {{"from", (folder_ / "base").string()}};
  refused("adapters train on a CPU", {R"(adapter={"rank": 2})"});
}

}  // namespace
}  // namespace tessera::train::training_device_test
