// Training on another device: the CPU's losses, checkpoints that any device resumes, and one read a
// step.
#include <gtest/gtest.h>

#include <ATen/Context.h>

#include <cmath>
#include <functional>

#include "fake_device/tested_device.h"
#include "tessera/infer/loading/load_model.h"
#include "tessera/kernels/weights/gemm.h"
#include "tessera/train/gguf_testing.h"
#include "tessera/train/loop/find_batch.h"
#include "tessera/train/loop/trainer.h"
#include "tessera/train/objective/denoising/noise_testing.h"
#include "tessera/train/optimizer/device_rules.h"
#include "tessera/train/optimizer/shampoo.h"
#include "tessera/train/runs/run_folder.h"

namespace tessera::train::training_device_test {
namespace {

namespace fs = std::filesystem;

class TrainingOnDevice : public testing::Test {
 protected:
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
          {.resume = true,
           .sequence = split_,
           .device = device,
           .on_step = [&](const LogLine& line, int64_t) {
             out.steps.push_back(line.loss);
             out.norms.push_back(line.grad_norm);
             if (line.valid_loss) out.valid.push_back(*line.valid_loss);
             if (after) after(line.step);
           }});
    return out;
  }
  /// Largest differences of losses and of norms, relative to what is above 1.
  struct Bounds {
    double loss = 1e-5, norm = 1e-5;
  };
  /// The run on both devices; their losses and norms agree.
  void expect_same(const std::string& name,
                   const std::vector<std::string>& changes = {},
                   const Bounds& bounds = {1e-5, 1e-5}) {
    SCOPED_TRACE(name);
    const Losses want = run(name + " cpu", at::kCPU, changes),
                 got = run(name + " device", there_, changes);
    const auto close = [](const std::vector<double>& a, const std::vector<double>& b,
                          const char* what, double bound) {
      ASSERT_EQ(a.size(), b.size()) << what;
      for (size_t i = 0; i < a.size(); ++i)
        EXPECT_NEAR(a[i], b[i], bound * std::max(1.0, b[i])) << what << " " << i;
    };
    close(got.steps, want.steps, "loss", bounds.loss);
    close(got.norms, want.norms, "norm", bounds.norm);
    close(got.valid, want.valid, "validation loss", bounds.loss);
  }

  const at::Device there_ = test::tested_device();
  nn::SequenceSplit split_ = {};
  TemporaryFolder folder_;
  Json json_ = tiny_recipe(folder_.write("text.txt", counting_text(4000)));
};

TEST_F(TrainingOnDevice, LossesOfEveryRuleAreThoseOfTheCpu) {
  for (const char* rule :
       {R"({"type": "adamw", "lr": 0.01})", R"({"type": "adam", "lr": 0.01, "weight_decay": 0.1})",
        R"({"type": "sgd", "lr": 0.1, "momentum": 0.9, "nesterov": true, "weight_decay": 0.1})",
        R"({"type": "sgd", "lr": 0.1, "momentum": 0.5, "dampening": 0.2})",
        R"({"type": "sgd", "lr": 0.1, "momentum": 0})", R"({"type": "lion", "lr": 0.003})",
        R"({"type": "muon"})", R"({"type": "muon", "nesterov": false, "scale": "spectral"})",
        R"({"type": "adafactor", "weight_decay": 0.1})",
        R"({"type": "adafactor", "form": "transformers", "beta1": 0.9, "weight_decay": 0.1})",
        R"({"type": "adafactor", "form": "transformers", "scale_parameter": false, "lr": 0.001})",
        R"({"type": "adamw", "lr": 0.01, "moments": "int8"})",
        R"({"type": "adam", "lr": 0.01, "moments": "int8", "weight_decay": 0.1})",
        R"({"type": "adamw", "lr": 0.01, "average": {"decay": 0.9}})",
        R"({"type": "adamw", "lr": 0.01, "average": {"decay": 0.9, "from": 7}})"}) {
    json_["optimizer"] = json_of(rule);
    expect_same(rule, {"train.steps=20"});
  }
  // roots of factors by eigenvectors, which carry rounding on
  for (const char* rule :
       {R"({"type": "shampoo", "lr": 0.003, "every": 3})",
        R"({"type": "shampoo", "lr": 0.003, "graft": "none", "every": 3, "largest": 16})"}) {
    json_["optimizer"] = json_of(rule);
    expect_same(rule, {"train.steps=20"}, {.loss = 1e-5, .norm = 1e-4});
  }
  json_["optimizer"] = json_of(R"({"type": "schedule_free_adamw", "lr": 0.01})");
  expect_same("schedule free", {"train.steps=20", R"(schedule={"type": "constant"})"});
}

/// An AdamW or Adam rule on three parameters of two rates and two decays; gradients are halved.
class AdamOnDevice : public TrainingOnDevice {
 protected:
  void step(UpdateRule& rule, int64_t t) {
    const Tensor g = at::sin(at::arange(6, at::kDouble) * 0.7 + t).to(at::kFloat);
    std::vector<Tensor> gradients;
    std::vector<Parameter> parameters;
    for (Tensor& w : weights_) {
      gradients.push_back(g.to(there_));
      parameters.push_back({static_cast<float*>(w.mutable_data_ptr()),
                            static_cast<const float*>(gradients.back().const_data_ptr())});
    }
    rule.update(parameters, {.t = t, .lr = 0.01, .scale = 0.5});
  }
  std::unique_ptr<UpdateRule> rule(const char* type, const char* moments = "float32") {
    const Recipe recipe = read_recipe(
        json_, "",
        {fmt::format(
            R"(optimizer={{"type": "{}", "eps": 1e-3, "betas": [0.9, 0.95], "moments": "{}"}})",
            type, moments)});
    return device_rule(recipe.optimizer.rule,
                       {{.name = "a", .shape = {2, 3}, .weight_decay = 0.1},
                        {.name = "b", .shape = {6}},
                        {.name = "c", .shape = {6}, .weight_decay = 0.1, .lr_factor = 0.3}},
                       there_, {});
  }
  static Tensor first(at::Device device) {
    return at::sin(at::arange(6, at::kDouble) * 0.5 + 0.1).to(at::kFloat).to(device);
  }
  std::vector<Tensor> weights_{first(there_), first(there_), first(there_)};
};

TEST_F(AdamOnDevice, AgainstNumpy) {
  // tools/golden/optimizers.py, adam()
  const std::map<std::string, std::vector<std::vector<double>>> want{
      {"adamw",
       {{0.07112160, 0.54031447, 0.87829389, 1.00230874, 0.88976181, 0.54011697},
        {0.07139088, 0.54197760, 0.88094126, 1.00529237, 0.89237855, 0.54169168},
        {0.09121353, 0.55733761, 0.88732781, 1.00039098, 0.87118079, 0.52289197}}},
      {"adam",
       {{0.07133450, 0.54054596, 0.87605586, 1.00105655, 0.89185217, 0.54063286},
        {0.07139088, 0.54197760, 0.88094126, 1.00529237, 0.89237855, 0.54169168},
        {0.09128045, 0.55740611, 0.88665253, 1.00001564, 0.87180385, 0.52304866}}}};
  for (const auto& [type, rows] : want) {
    SCOPED_TRACE(type);
    for (Tensor& w : weights_) w.copy_(first(there_));
    const auto adam = rule(type.c_str());
    for (int64_t t = 1; t <= 3; ++t) step(*adam, t);
    for (size_t i = 0; i < 3; ++i) {
      const Tensor got = weights_[i].cpu();
      for (int64_t k = 0; k < 6; ++k)
        EXPECT_NEAR(got[k].item<double>(), rows[i][static_cast<size_t>(k)], 3e-7) << i << " " << k;
    }
  }
}

TEST_F(AdamOnDevice, AGroupIsOneLaunchAndNothingIsRead) {
  if (!test::is_test_device()) GTEST_SKIP() << "operators are counted on the test device";
  for (const std::string type : {"adamw", "adam"}) {
    const auto adam = rule(type.c_str());
    step(*adam, 1);
    fake_device::reset_counts();
    const auto before = fake_device::counts().by_name;
    step(*adam, 2);
    const fake_device::Counts counts = fake_device::counts();
    EXPECT_EQ(counts.by_name.at("aten::_fused_" + type + "_"), 3) << type;
    EXPECT_EQ(counts.scalars, 0);
    EXPECT_EQ(counts.to_host, 0);
    // and those that scale the gradients and hold the number of the step
    EXPECT_LE(counts.operators, 3 + 4) << type;
  }
}

TEST_F(TrainingOnDevice, SoapIsThatOfTheCpu) {
  // moments of full rank, whose eigenvectors do not follow from rounding
  const std::vector<ParameterInfo> slots{
      {.name = "w", .shape = {2, 12, 12}, .weight_decay = 0.1, .lr_factor = 0.5, .matrix = true}};
  const SoapKeys keys{.every = 3};
  Soap here(slots, keys), there(slots, keys, there_);
  Tensor w = at::sin(at::arange(288, at::kFloat)).reshape({2, 12, 12});
  Tensor moved = w.to(there_);
  for (int64_t t = 1; t <= 20; ++t) {
    const Tensor g =
        at::cos(at::arange(288, at::kFloat) * (0.7 + 0.31 * static_cast<double>(t)) + t)
            .reshape({2, 12, 12})
            .contiguous();
    const Tensor g_there = g.to(there_);
    const UpdateRule::Step step{.t = t, .lr = 0.01, .scale = 0.5};
    here.update(std::vector<Parameter>{{w.data_ptr<float>(), g.const_data_ptr<float>()}}, step);
    there.update(std::vector<Parameter>{{static_cast<float*>(moved.mutable_data_ptr()),
                                         static_cast<const float*>(g_there.const_data_ptr())}},
                 step);
  }
  EXPECT_LT((moved.cpu() - w).abs().max().item<double>(), 1e-5);
  // these moments have no full rank (11 bytes in the text, wide feed-forward matrices)
  json_["optimizer"] = json_of(R"({"type": "soap", "lr": 0.003, "every": 3})");
  expect_same("soap", {"train.steps=20"}, {.loss = 5e-3, .norm = 1e-2});
}

TEST_F(TrainingOnDevice, AdaptersAreThoseOfTheCpu) {
  run("base", at::kCPU, {});
  const auto adapted = [&](const std::string& from) {
    json_.erase("spec");
    json_["init"] = {{"from", from}};
    std::string other;
    while (other.size() < 3000) other += "what another text says ";
    json_["data"]["train"] = {folder_.write("other.txt", other)};
  };
  adapted((folder_ / "base").string());
  for (const char* adapter :
       {R"({"rank": 2, "alpha": 4, "dropout": 0.1})", R"({"type": "dora", "rank": 2})",
        R"({"type": "ia3"})", R"({"type": "prefix", "tokens": 3})",
        R"({"type": "prompt", "tokens": 3})",
        R"({"rank": 2, "targets": ["mixer.q"], "save": ["*norm*"]})"}) {
    json_["adapter"] = json_of(adapter);
    // the gradients of DoRA's norms of rows are small differences of large sums
    expect_same(adapter, {"train.steps=20"}, {.loss = 1e-5, .norm = 1e-3});
  }
  // what a device has trained is an adapter of the stored model
  const infer::LoadedModel merged =
      infer::load_model(folder_ / "base/latest", {},
                        folder_ / R"({"rank": 2, "alpha": 4, "dropout": 0.1} device)" / "latest");
  EXPECT_TRUE(merged.model.weights().find("layers.0.mixer.q.weight")->parts() != nullptr);
}

TEST_F(TrainingOnDevice, AdaptersOfQuantizedModelsAreThoseOfTheCpu) {
  const std::string file = gguf_file(folder_, DType::q8_0).string();
  json_ = {{"init", {{"from", file}}},
           {"adapter", {{"rank", 4}}},
           {"data", {{"type", "copying"}, {"items", 4}, {"valid", 8}}},
           {"train", {{"steps", 20}, {"batch", 4}, {"length", 24}, {"log_every", 1}}},
           {"optimizer", {{"lr", 0.01}, {"weight_decay", 0}}},
           {"schedule", {{"type", "constant"}}}};
  expect_same("QLoRA");
  EXPECT_NO_THROW(infer::load_model(file, {}, folder_ / "QLoRA device" / "latest"));
}

TEST_F(TrainingOnDevice, HalfPrecisionIsThatOfTheCpu) {
  const std::vector<std::string> moe = {
      R"(spec.ffn={"type": "moe", "n_experts": 4, "expert": {"type": "glu", "d_hidden": 8},
                   "router": {"type": "top_k", "k": 2}})"};
  for (const char* precision : {"bf16", "fp16"}) {
    if (precision == std::string("bf16") && !kernels::has_bf16_units()) continue;
    const std::string set = fmt::format("train.precision=\"{}\"", precision);
    // a factor next to the midpoint of two numbers of 16 bits may become either of them: bf16 has
    // 8 digits, fp16 11
    const Bounds bounds =
        precision == std::string("bf16") ? Bounds{1e-3, 1e-2} : Bounds{1e-5, 1e-3};
    expect_same(precision, {set, "train.steps=20"}, bounds);
    expect_same(std::string(precision) + " checkpointing",
                {set, R"(train.recompute={"of": "layers"})", "train.accumulate=2"}, bounds);
    expect_same(std::string(precision) + " experts", {set, "train.steps=5", moe[0]}, bounds);
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

TEST_F(TrainingOnDevice, ContrastiveLossesAreThoseOfTheCpu) {
  std::string lines;
  for (int i = 0; i < 64; ++i) {
    const std::string word(static_cast<size_t>(1 + i % 4), static_cast<char>('a' + i % 7));
    lines += Json{{"text", "the " + word + std::to_string(i)},
                  {"positive", std::to_string(i) + word},
                  {"negatives", {"a " + word}}}
                 .dump() +
             "\n";
  }
  json_ = tiny_recipe(folder_.write("pairs.jsonl", lines));
  json_["spec"]["arch"] = "encoder";
  json_["spec"]["head"] = nullptr;
  json_["train"]["length"] = 24;
  json_["train"]["steps"] = 6;
  for (const char* objective :
       {R"({"type": "contrastive"})",
        R"({"type": "contrastive", "pooling": "cls", "symmetric": true, "hard_weight": 0.5,
            "dims": [4, 8]})"}) {
    json_["objective"] = json_of(objective);
    expect_same(objective, {}, {.loss = 1e-5, .norm = 1e-4});
    expect_same(std::string("GradCache ") + objective, {"train.accumulate=2"},
                {.loss = 1e-5, .norm = 1e-4});
  }
}

TEST_F(TrainingOnDevice, PreferencesAreThoseOfTheCpu) {
  std::string lines;
  for (int i = 0; i < 40; ++i)
    lines += Json{{"prompt", std::to_string(i)},
                  {"chosen", std::to_string(i + 1) + "."},
                  {"rejected", "no " + std::to_string(i)}}
                 .dump() +
             "\n";
  json_["data"] = {{"train", {folder_.write("pairs.jsonl", lines)}},
                   {"format", "jsonl"},
                   {"valid_fraction", 0.2}};
  json_["train"]["steps"] = 6;
  for (const char* loss : {"dpo", "ipo", "hinge", "simpo", "orpo"}) {
    json_["objective"] = {{"type", "preference"}, {"loss", loss}};
    expect_same(loss, {}, {.loss = 1e-5, .norm = 1e-4});
  }
  // a resumed run has the reference of the first part, computed on any device
  json_["objective"] = {{"type", "preference"}};
  json_["schedule"] = {{"type", "constant"}};
  const auto resumed = [&](const std::string& name, at::Device first, at::Device then) {
    run(name, first, {"train.steps=3"});
    return run(name, then, {"train.steps=6"}).steps;
  };
  const std::vector<double> whole = run("whole", there_, {"train.steps=6"}).steps;
  EXPECT_EQ(resumed("on the device", there_, there_),
            std::vector<double>(whole.begin() + 3, whole.end()));
  const std::vector<double> up = resumed("up", at::kCPU, there_);
  ASSERT_EQ(up.size(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(up[i], whole[3 + i], 1e-5);
}

TEST_F(TrainingOnDevice, DistillationIsThatOfTheCpu) {
  json_["spec"]["layers"][0]["repeat"] = 3;
  run("teacher", at::kCPU, {"train.steps=4"});
  json_["spec"]["layers"][0]["repeat"] = 2;
  json_["train"]["steps"] = 6;
  const auto learn = [&](const std::string& name, const char* terms, const Json& more = {}) {
    json_["objective"] = {{"type", "distillation"},
                          {"teacher", (folder_ / "teacher").string()},
                          {"terms", json_of(terms)}};
    json_["objective"].update(more.is_null() ? Json::object() : more);
    expect_same(name, {}, {.loss = 1e-5, .norm = 1e-4});
  };
  learn("terms", R"([
    {"of": "logits"}, {"of": "logits", "divergence": "reverse", "temperature": 2},
    {"of": "logits", "divergence": "jsd", "beta": 0.3, "top_k": 5},
    {"of": "hidden"}, {"of": "hidden", "distance": "cosine", "weight": 2},
    {"of": "attention"}, {"of": "values"},
    {"of": "mixer"}, {"of": "mixer", "match": "heads"}, {"of": "mixer", "match": "frobenius"}])");
  json_["spec"]["d_model"] = 8;  // maps to the teacher's width are trained too
  learn("narrow", R"([{"of": "logits"}, {"of": "hidden"}])", {{"alpha", 0.5}});
}

TEST_F(TrainingOnDevice, ReplacedTokensAreThoseOfTheCpu) {
  json_["spec"]["arch"] = "encoder";
  json_["spec"]["vocab"] = 257;
  json_["spec"]["d_model"] = 32;
  json_["spec"].erase("head");
  json_["spec"]["heads"] = {"token_score"};
  json_["spec"]["layers"][0]["mixer"]["n_heads"] = 4;
  json_["train"]["steps"] = 6;
  for (const char* share : {"none", "embeddings", "disentangled"}) {
    json_["objective"] = {
        {"type", "replaced_token"}, {"mask_id", 256}, {"rate", 0.25}, {"share", share}};
    expect_same(share, {}, {.loss = 1e-5, .norm = 1e-4});
  }
}

TEST_F(TrainingOnDevice, LabelsAreThoseOfTheCpu) {
  const auto with = [&](const char* objective, const char* heads,
                        const std::function<Json(const std::string& text, int i)>& example) {
    std::string lines;
    for (int i = 0; i < 60; ++i) {
      const std::string word(static_cast<size_t>(1 + i % 3), static_cast<char>('a' + i % 7));
      lines += example(word, i).dump() + "\n";
    }
    json_ = json_of(R"({
      "spec": {"tessera": 1, "arch": "encoder", "vocab": 256, "d_model": 16,
               "layers": [{"mixer": {"type": "attention", "n_heads": 2, "position": "rope"}}],
               "ffn": {"type": "glu", "d_hidden": 32}},
      "data": {"valid_fraction": 0.2},
      "train": {"steps": 20, "batch": 8, "length": 32, "log_every": 1, "eval_every": 10},
      "optimizer": {"lr": 0.01}, "schedule": {"type": "constant"}})");
    json_["data"]["train"] = {folder_.write("labels.jsonl", lines)};
    json_["objective"] = json_of(objective);
    json_["spec"]["heads"] = json_of(heads);
    expect_same(objective, {}, {.loss = 1e-5, .norm = 1e-3});
  };
  const auto pooled = [](int classes) {
    return fmt::format(
        R"([{{"type": "classifier", "n_labels": {}}}, {{"type": "pooler", "of": "mean"}}])",
        classes);
  };
  with(R"({"type": "classification", "labels": ["no", "yes"], "class_weights": [0.5, 2]})",
       pooled(2).c_str(), [](const std::string& text, int i) {
         return Json{{"text", text + (i % 2 == 0 ? "x" : "y")},
                     {"label", i % 2 == 0 ? "yes" : "no"}};
       });
  with(R"({"type": "classification", "labels": ["x", "y"], "multi_label": true})",
       pooled(2).c_str(), [](const std::string& text, int i) {
         return Json{{"text", text + (i % 2 == 0 ? "x" : "y")},
                     {"label", Json::array({i % 2 == 0 ? "x" : "y"})}};
       });
  with(R"({"type": "regression"})", pooled(1).c_str(), [](const std::string& text, int i) {
    return Json{{"text", text}, {"score", i % 3}};
  });
  with(R"({"type": "token_classification", "labels": ["O", "B-N"]})",
       R"([{"type": "classifier", "n_labels": 2, "of": "tokens"}])",
       [](const std::string& text, int) {
         return Json{{"words", {text, "X" + text}}, {"labels", {"O", "B-N"}}};
       });
  with(R"({"type": "question_answering", "stride": 4})", R"([{"type": "span"}])",
       [](const std::string& text, int i) {
         const std::string answer = std::to_string(10 + i % 7);
         return Json{{"context", text + " " + answer}, {"question", "n"}, {"answers", {answer}}};
       });
}

TEST_F(TrainingOnDevice, CarriedWindowsRanksAndChangingExpertsAreThoseOfTheCpu) {
  json_["train"] = json_of(R"({"steps": 8, "batch": 2, "length": 16, "log_every": 1,
                               "eval_every": 4, "windows": "carried", "carry_limit": 64})");
  expect_same("carried");
  json_["train"]["accumulate"] = 2;
  json_["spec"]["layers"][0]["mixer"] =
      json_of(R"({"type": "mamba2", "n_heads": 2, "d_state": 4})");
  expect_same("carried recurrence");
  json_ = tiny_recipe(folder_ / "text.txt");
  json_["spec"]["ffn"] =
      json_of(R"({"type": "moe", "n_experts": 4, "expert": {"type": "glu", "d_hidden": 8},
                  "router": {"type": "top_k", "k": 2}})");
  json_["experts"] =
      json_of(R"({"grow": [{"at": 6, "to": 6}], "remove": {"below": 0.9, "after": 4}})");
  expect_same("experts");
  json_ = tiny_recipe(folder_ / "text.txt");
  json_["train"]["eval_every"] = 0;
  for (const auto layout : {ops::RingLayout::contiguous, ops::RingLayout::striped}) {
    split_ = {.ranks = 4, .layout = layout};
    expect_same(fmt::format("ranks {}", static_cast<int>(layout)));
  }
}

TEST_F(TrainingOnDevice, AStepReadsItsLossAndNormAtOnce) {
  if (!test::is_test_device()) GTEST_SKIP() << "copies are counted on the test device";
  const auto reads_once = [&](const std::string& name, const std::vector<std::string>& changes) {
    SCOPED_TRACE(name);
    std::vector<std::string> all = {"train.steps=8", "train.eval_every=0", "data.valid_fraction=0",
                                    "checkpoint.every=0"};
    all.insert(all.end(), changes.begin(), changes.end());
    // the first two steps look at the gradients and weights (FirstUpdates)
    run(name, there_, all, [](int64_t step) {
      const fake_device::Counts counts = fake_device::counts();
      if (step > 4) {
        EXPECT_EQ(counts.scalars, 0) << step;
        EXPECT_EQ(counts.to_host, 1) << step;
      }
      fake_device::reset_counts();
    });
  };
  reads_once("accumulation", {"train.accumulate=2"});
  for (const char* rule : {"adafactor", "muon", "lion", "schedule_free_adamw", "soap", "shampoo"})
    reads_once(rule, {fmt::format(R"(optimizer={{"type": "{}"}})", rule),
                      R"(schedule={"type": "constant"})"});
  reads_once("average", {R"(optimizer.average={"decay": 0.9})"});
  reads_once("int8", {R"(optimizer.moments="int8")"});
  reads_once("carried", {R"(train.windows="carried")", "train.carry_limit=64"});
  reads_once("fp16", {"train.precision=\"fp16\""});
  reads_once("checkpointing", {R"(train.recompute={"of": "layers"})"});
  run("base", at::kCPU, {"train.steps=1"});
  json_.erase("spec");
  json_["init"] = {{"from", (folder_ / "base").string()}};
  reads_once("adapter", {R"(adapter={"rank": 2})"});
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
  for (const char* optimizer :
       {R"({"type": "schedule_free_adamw", "lr": 0.01})",
        R"({"type": "adafactor", "form": "transformers", "beta1": 0.9})", R"({"type": "muon"})",
        R"({"type": "soap", "every": 3})", R"({"type": "shampoo", "every": 3})",
        R"({"lr": 0.01, "moments": "int8"})", R"({"lr": 0.01, "average": {"decay": 0.9}})"}) {
    SCOPED_TRACE(optimizer);
    json_["optimizer"] = json_of(optimizer);
    const std::string name = json_["optimizer"].value(
        "type", json_["optimizer"].contains("moments") ? "int8" : "average");
    const Losses own = run(name, there_, whole);
    EXPECT_EQ(resumed(name + " resumed", there_, there_), rest(own));
  }
  json_["optimizer"] = {{"lr", 0.01}};
  const std::vector<double> up = resumed("up", at::kCPU, there_),
                            down = resumed("down", there_, at::kCPU);
  ASSERT_EQ(up.size(), 10u);
  ASSERT_EQ(down.size(), 10u);
  for (size_t i = 0; i < 10; ++i) {
    EXPECT_NEAR(up[i], rest(cpu)[i], 1e-5);
    EXPECT_NEAR(down[i], rest(cpu)[i], 1e-5);
  }
}

TEST_F(TrainingOnDevice, DeterministicRunsRepeatAndResumeBitForBit) {
  json_["schedule"] = {{"type", "constant"}};
  json_["train"]["eval_every"] = 0;
  const std::vector<std::string> half{"train.steps=8", "train.deterministic=true"},
      whole{"train.steps=16", "train.deterministic=true"}, without{"train.steps=16"};
  std::optional<fake_device::UnorderedSums> unordered;
  if (test::is_test_device()) {
    unordered.emplace();
    EXPECT_NE(run("one", there_, without).steps, run("other", there_, without).steps);
  }
  fake_device::reset_counts();
  const Losses own = run("own", there_, whole);
  if (test::is_test_device()) {
    EXPECT_GT(fake_device::counts().operators, 0);
    // from the first operator on, and of the backward pass on its own thread
    EXPECT_EQ(fake_device::counts().not_deterministic, 0);
  }
  EXPECT_STREQ(std::getenv("CUBLAS_WORKSPACE_CONFIG"), ":4096:8");
  EXPECT_EQ(run("again", there_, whole).steps, own.steps);
  run("resumed", there_, half);
  EXPECT_EQ(run("resumed", there_, whole).steps,
            std::vector<double>(own.steps.begin() + 8, own.steps.end()));
  EXPECT_FALSE(at::globalContext().deterministicAlgorithms()) << "holds after the run";
  // on the CPU it changes no bit
  EXPECT_EQ(run("cpu", at::kCPU, whole).steps, run("cpu without", at::kCPU, without).steps);
}

TEST_F(TrainingOnDevice, Float32IsNotTf32) {
  at::globalContext().setAllowTF32CuBLAS(true);
  at::globalContext().setAllowTF32CuDNN(true);
  ops::device_named(test::is_test_device() ? "fake" : test::tested_device_name());
  EXPECT_FALSE(at::globalContext().allowTF32CuBLAS());
  EXPECT_FALSE(at::globalContext().allowTF32CuDNN());
}

TEST_F(TrainingOnDevice, Tf32IsThatOfARunThatAsksForIt) {
  const std::vector<std::string> changes{"train.steps=2", "train.precision=tf32"};
  int64_t allowed = 0;
  run("tf32", there_, changes, [&](int64_t) {
    allowed += at::globalContext().allowTF32CuBLAS() && at::globalContext().allowTF32CuDNN();
  });
  EXPECT_EQ(allowed, 2);
  EXPECT_FALSE(at::globalContext().allowTF32CuBLAS()) << "holds after the run";
  EXPECT_FALSE(at::globalContext().allowTF32CuDNN());
  test::expect_error(ErrorKind::usage, "[train.precision] \"tf32\" is for GPUs",
                     [&] { run("tf32 cpu", at::kCPU, changes); });
}

TEST_F(TrainingOnDevice, LossesThatAreNotFiniteStopARun) {
  for (const at::Device device : {at::Device(at::kCPU), there_})
    test::expect_error(ErrorKind::input, "lower optimizer.lr", [&] {
      run("bad " + device.str(), device,
          {R"(optimizer={"type": "sgd", "lr": 1e30})", "train.clip_norm=0"});
    });
}

TEST_F(TrainingOnDevice, FindsABatchThatFitsItsMemory) {
  if (!test::is_test_device()) GTEST_SKIP() << "blocks of CUDA's allocator are larger than these";
  json_["train"] = json_of(R"({"steps": 2, "batch": 8, "length": 16})");
  const Recipe recipe = read_recipe(json_, "");
  const int64_t there = available_bytes(there_);
  EXPECT_GT(there, 0);
  const BatchSearch all = find_batch(recipe, folder_ / "cache", there, {}, nullptr, there_);
  EXPECT_EQ(all.chosen.batch, 8);
  ASSERT_EQ(all.trials.size(), 4u);
  for (const BatchTrial& trial : all.trials) EXPECT_TRUE(trial.tried);
  for (size_t i = 1; i < 4; ++i) EXPECT_GT(all.trials[i].bytes, all.trials[i - 1].bytes);
  // a limit between those of 4 and 8 sequences
  const int64_t limit = (all.trials[2].bytes + all.trials[3].bytes) / 2;
  EXPECT_EQ(find_batch(recipe, folder_ / "cache", limit, {}, nullptr, there_).chosen.batch, 4);
  // weights are no part of a sequence: two fit a limit far below
  // twice what one takes
  json_["spec"]["ffn"]["d_hidden"] = 2048;
  const Recipe wide = read_recipe(json_, "", {"train.batch=2", "train.length=4"});
  const BatchSearch both = find_batch(wide, folder_ / "cache", there, {}, nullptr, there_);
  ASSERT_EQ(both.trials.size(), 2u);
  EXPECT_EQ(find_batch(wide, folder_ / "cache", both.trials[1].bytes * 7 / 5, {}, nullptr, there_)
                .chosen.batch,
            2);
  test::expect_error(ErrorKind::input, "one sequence of 16 tokens takes", [&] {
    find_batch(recipe, folder_ / "cache", all.trials[0].bytes / 2, {}, nullptr, there_);
  });
}

}  // namespace
}  // namespace tessera::train::training_device_test
