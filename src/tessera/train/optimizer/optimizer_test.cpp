// What every optimiser of the table must do in a run, and what recipes say of them.
#include "tessera/train/optimizer/optimizer.h"

#include "tessera/base/cancel.h"
#include "tessera/base/threads.h"
#include "tessera/format/safetensors.h"
#include "tessera/train/loop/checkpoint.h"
#include "tessera/train/loop/trainer.h"
#include "tessera/train/runs/run_folder.h"
#include "tessera/train/train_testing.h"

namespace tessera::train::optimizer_test {
namespace {

namespace fs = std::filesystem;

/// Recipes' optimisers, each with what a short run needs.
const std::vector<std::string>& optimizers() {
  static const std::vector<std::string> all{
      R"({"type": "adamw", "lr": 0.01})",
      R"({"type": "adamw", "lr": 0.01, "moments": "int8"})",
      R"({"type": "adamw", "lr": 0.01, "average": {"decay": 0.9}})",
      R"({"type": "adam", "lr": 0.01})",
      R"({"type": "sgd", "lr": 0.3})",
      R"({"type": "lion", "lr": 0.003, "weight_decay": 0.1})",
      R"({"type": "adafactor", "lr": 0.1})",
      R"({"type": "adafactor", "form": "transformers", "beta1": 0.9, "scale_parameter": false})",
      R"({"type": "muon", "adamw": {"lr": 0.01}})",
      R"({"type": "soap", "lr": 0.01, "every": 3})",
      R"({"type": "shampoo", "lr": 0.01, "every": 3})",
      R"({"type": "schedule_free_adamw", "lr": 0.02})",
      R"({"type": "muon", "adamw": {"lr": 0.01},
          "groups": [{"match": ["embed.*"], "optimizer": {"type": "lion", "lr": 0.003}}]})"};
  return all;
}

struct Setting {
  TemporaryFolder folder;
  Json json = tiny_recipe(folder.write("text.txt", counting_text(3000)));
  explicit Setting(const std::string& optimizer) {
    json["optimizer"] = json_of(optimizer);
    json["schedule"] = {{"warmup", 2}};
    // one parameter of more than 4096 elements
    json["spec"]["vocab"] = 300;
  }
  TrainResult train(const std::string& name, const TrainOptions& options = {}) const {
    return train::train(read_recipe(json, ""), folder / name, options);
  }
};

class EveryOptimizer : public testing::TestWithParam<size_t> {
 protected:
  const std::string& optimizer() const { return optimizers()[GetParam()]; }
};

TEST_P(EveryOptimizer, ResumesBitForBit) {
  const Setting s(optimizer());
  s.train("whole");
  for (const int64_t cut : {1, 7}) {
    const std::string name = fmt::format("cut{}", cut);
    CancelToken cancel;
    expect_error(ErrorKind::cancelled, "stopped on request", [&] {
      s.train(name, {.cancel = &cancel, .on_step = [&](const LogLine& line, int64_t) {
                       if (line.step == cut) cancel.request(15);
                     }});
    });
    s.train(name, {.resume = true});
    for (const char* file : {"model.safetensors", "optimizer.safetensors"})
      EXPECT_TRUE(read_text_file(s.folder / "whole/step-12" / file) ==
                  read_text_file(s.folder / name / "step-12" / file))
          << optimizer() << " cut at " << cut << ": " << file;
  }
}

TEST_P(EveryOptimizer, SameBitsForAnyThreadCount) {
  const Setting s(optimizer());
  const int before = thread_count();
  std::vector<std::string> models;
  for (const int threads : {1, 2}) {
    set_thread_count(threads);
    models.push_back(read_text_file(s.train(fmt::format("threads{}", threads)).checkpoint /
                                    "model.safetensors"));
  }
  set_thread_count(before);
  EXPECT_TRUE(models[0] == models[1]) << optimizer();
}

TEST_P(EveryOptimizer, LossFalls) {
  Setting s(optimizer());
  s.json["train"]["steps"] = 40;
  const TrainResult result = s.train("run");
  EXPECT_LT(*result.last->valid_loss, 4.0) << optimizer();  // ln 300 = 5.7
  // what was evaluated is what the checkpoint holds
  const Json again = resolve(read_recipe(s.json, ""));
  EXPECT_EQ(resolve(read_recipe(again, "")), again);
}

INSTANTIATE_TEST_SUITE_P(Optimizers,
                         EveryOptimizer,
                         testing::Range(size_t{0}, optimizers().size()));

std::vector<std::string> states(const fs::path& checkpoint) {
  std::vector<std::string> names;
  const format::TensorFile file = format::open_safetensors(checkpoint / "optimizer.safetensors");
  for (const auto& view : file.tensors()) names.push_back(view.name);
  return names;
}

TEST(Optimizer, RulesForMatricesLeaveTheRestToAdamW) {
  const Setting s(R"({"type": "muon"})");
  const std::vector<std::string> names = states(s.train("run").checkpoint);
  const auto has = [&](const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  EXPECT_TRUE(has("momentum.layers.0.mixer.q.weight"));
  EXPECT_FALSE(has("second_moment.layers.0.mixer.q.weight"));
  EXPECT_TRUE(has("second_moment.embed.token.weight"));
}

TEST(Optimizer, AnAverageIsWhatIsEvaluatedAndSaved) {
  Setting s(R"({"type": "adamw", "lr": 0.01, "average": {"decay": 0.9}})");
  s.json["train"]["steps"] = 2;
  s.json["checkpoint"]["every"] = 1;
  s.train("run");
  const auto value = [&](int64_t step, const char* file, const std::string& name) {
    const auto tensors =
        format::open_safetensors(s.folder / fmt::format("run/step-{}", step) / file);
    return std::vector<float>(reinterpret_cast<const float*>(tensors.at(name).data.data()),
                              reinterpret_cast<const float*>(tensors.at(name).data.data()) + 16);
  };
  // e = 0.9 e + 0.1 w, from one checkpoint to the next
  const std::string name = "layers.0.mixer.q.weight";
  const auto e1 = value(1, "model.safetensors", name), e2 = value(2, "model.safetensors", name),
             w2 = value(2, "optimizer.safetensors", "trained." + name);
  for (size_t i = 0; i < 16; ++i) EXPECT_NEAR(e2[i], 0.9 * e1[i] + 0.1 * w2[i], 1e-6) << i;
  EXPECT_NE(e2, w2);
}

TEST(Optimizer, RecipesAreRefusedInOneLine) {
  const auto refused = [](const std::string& optimizer, const char* reason,
                          const Json& rest = Json::object()) {
    Json json = tiny_recipe("a.txt");
    json["optimizer"] = json_of(optimizer);
    json["schedule"] = {{"type", "cosine"}};
    json.update(rest);
    expect_error(ErrorKind::spec, reason, [&] { read_recipe(json, ""); });
  };
  refused(R"({"type": "adamW"})", "[optimizer.type]");
  refused(R"({"type": "muon", "betas": [0.9, 0.95]})",
          "[optimizer] unknown key \"betas\"; valid keys: lr, momentum");
  refused(R"({"type": "lion", "betas": [0.9]})", "[optimizer.betas] 1 numbers; expected 2");
  refused(R"({"type": "sgd", "momentum": 1})", "[optimizer.momentum] found 1");
  refused(R"({"type": "sgd", "momentum": 0, "nesterov": true})", "[optimizer.nesterov] true");
  refused(R"({"type": "adafactor", "beta1": 0.9})", "[optimizer.form] \"torch\" has neither");
  refused(R"({"type": "schedule_free_adamw"})", "[schedule.type] found \"cosine\"");
  refused(R"({"type": "schedule_free_adamw", "average": {}})", "[optimizer.average] given with");
  refused(R"({"groups": [{"match": ["*"], "optimizer": {"type": "lion", "momentum": 0.9}}]})",
          "[optimizer.groups[0].optimizer] unknown key \"momentum\"; valid keys: lr, betas");
  refused(R"({"groups": [{"match": ["*"], "frozen": true, "optimizer": {"type": "lion"}}]})",
          "[optimizer.groups[0].optimizer] given for parameters that are frozen");
}

}  // namespace
}  // namespace tessera::train::optimizer_test
