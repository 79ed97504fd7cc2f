// Experts that come and go within a run: what they compute, what goes with them, and that a run
// which was cut anywhere is the run.
#include "tessera/train/loop/train_state.h"

#include <stdexcept>

#include "tessera/convert/checkpoint.h"
#include "tessera/train/loop/trainer.h"
#include "tessera/train/train_testing.h"

namespace tessera::train::train_state_test {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kExperts = 6;

struct Setting {
  TemporaryFolder folder;
  Json json = tiny_recipe(folder.write("text.txt", counting_text(3000)));

  explicit Setting(const char* router) {
    json["spec"]["ffn"] = {{"type", "moe"},
                           {"n_experts", kExperts},
                           {"router", json_of(router)},
                           {"expert", {{"type", "glu"}, {"d_hidden", 8}}}};
  }
  TrainResult train(const std::string& name, const TrainOptions& options = {}) const {
    return train::train(read_recipe(json, "", {}), folder / name, options);
  }
};

Tensor hidden_of(const model::Model& model) {
  const at::NoGradGuard no_gradients;
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < 40; ++i) ids.push_back(i * i * 7 % 256);
  return model.hidden(nn::Batch::of(std::vector<std::vector<int64_t>>{ids}));
}

int64_t experts_of(const model::Model& model, int64_t layer) {
  return model.weights().find(fmt::format("layers.{}.ffn.experts.up.weight", layer))->size(0);
}

TEST(TrainState, ExpertsThatNobodyUsesAreNotMissed) {
  const Setting s(R"({"type": "top_k", "k": 2, "bias": true})");
  const Recipe recipe = read_recipe(s.json, "", {});
  TrainState before({recipe.spec, model::Weights::initial(recipe.spec, 3)}, recipe.optimizer);
  for (const auto& [decl, weight] : before.model.weights().all()) {
    const at::NoGradGuard no_gradients;
    Tensor tensor = weight->dense_tensor();
    // experts 1 and 4 of the first layer are never chosen
    if (decl.name == "layers.0.ffn.router.gate.bias")
      for (const int64_t e : {1, 4}) tensor[e] = -1000;
  }
  for (const Optimizer::StateTensor& state : before.optimizer->state())
    Tensor(state.tensor).copy_(at::arange(state.tensor.numel()).reshape(state.tensor.sizes()));
  before.optimizer->restore_updates(17);
  const Tensor want = hidden_of(before.model);

  const std::unique_ptr<TrainState> after = with_experts(
      before, recipe.optimizer, {.from = {{"layers.0.ffn", {0, 2, 3, 5}}}, .noise = 0.5});
  EXPECT_EQ(experts_of(after->model, 0), 4);
  EXPECT_EQ(experts_of(after->model, 1), kExperts);
  EXPECT_TRUE(at::allclose(hidden_of(after->model), want, 1e-5, 1e-6));
  EXPECT_EQ(after->optimizer->updates(), 17);
  const Tensor kept = at::tensor({0, 2, 3, 5});
  std::map<std::string, Tensor> states;
  for (const Optimizer::StateTensor& state : before.optimizer->state())
    states[state.name] = state.tensor;
  for (const Optimizer::StateTensor& state : after->optimizer->state()) {
    const bool changes = state.parameter.starts_with("layers.0.ffn.");
    EXPECT_TRUE(at::equal(state.tensor, changes ? states.at(state.name).index_select(0, kept)
                                                : states.at(state.name)))
        << state.name;
  }
}

TEST(TrainState, CopiesAreApartByTheNoiseAlone) {
  const Setting s(R"({"type": "top_k", "k": 2, "balance": true, "score": "sigmoid"})");
  const Recipe recipe = read_recipe(s.json, "", {});
  TrainState before({recipe.spec, model::Weights::initial(recipe.spec, 3)}, recipe.optimizer);
  const std::unique_ptr<TrainState> after =
      with_experts(before, recipe.optimizer,
                   {.from = {{"layers.1.ffn", {0, 1, 2, 3, 4, 5, 2}}}, .noise = 0.25, .seed = 8});
  ASSERT_EQ(experts_of(after->model, 1), 7);
  const auto value = [](const TrainState& learner, const std::string& name) {
    return learner.model.weights().find("layers.1.ffn." + name)->tensor().detach();
  };
  for (const char* name : {"experts.up.weight", "experts.down.weight", "router.gate.weight"}) {
    const Tensor old = value(before, name), now = value(*after, name);
    EXPECT_TRUE(at::equal(now.narrow(0, 0, 6), old)) << name;
    const Tensor noise = now[6] - old[2];
    EXPECT_NEAR((noise.norm() / old[2].norm()).item<double>(), 0.25, 0.12) << name;
  }
  EXPECT_EQ(value(*after, "router.balance").numel(), 7);
}

/// Losses of validation after every step of a run without a rate that changes its experts.
std::vector<double> losses_of_growth(const char* router, const char* experts) {
  Setting s(router);
  s.json["experts"] = json_of(experts);
  s.json["train"].update({{"steps", 4}, {"eval_every", 1}, {"eval_batches", 0}});
  s.json["optimizer"].update({{"lr", 0}, {"weight_decay", 0}});
  std::vector<double> losses;
  TrainOptions options;
  options.on_step = [&](const LogLine& line, int64_t) {
    losses.push_back(line.valid_loss.value());
    EXPECT_EQ(line.expert_changes.empty(), line.step != 2);
  };
  s.train("run", options);
  EXPECT_EQ(losses.size(), 4U);
  return losses;
}

TEST(TrainState, GrowthKeepsTheFunctionWhereItCan) {
  // twice the experts and choices, weights normalised by their sum or over all experts; one choice
  // that weighs by a sigmoid
  for (const auto& [router, experts] :
       {std::pair{R"({"type": "top_k", "k": 2})",
                  R"({"grow": [{"at": 2, "to": 12, "k": 4, "noise": 0}]})"},
        {R"({"type": "top_k", "k": 2, "norm": 0})",
         R"({"grow": [{"at": 2, "to": 12, "k": 4, "noise": 0}]})"},
        {R"({"type": "top_k", "k": 1, "norm": 0, "score": "sigmoid"})",
         R"({"grow": [{"at": 2, "to": 9, "noise": 0}]})"}}) {
    const std::vector<double> losses = losses_of_growth(router, experts);
    for (const double loss : losses) EXPECT_NEAR(loss, losses.front(), 1e-5) << router;
  }
  // with noise it is another one
  const std::vector<double> noisy = losses_of_growth(
      R"({"type": "top_k", "k": 2})", R"({"grow": [{"at": 2, "to": 12, "k": 4, "noise": 0.3}]})");
  EXPECT_GT(std::abs(noisy[3] - noisy[0]), 1e-5);
}

/// The lines of a log without their timings.
std::vector<Json> log_of(const fs::path& run) {
  std::vector<Json> lines;
  const std::string text = read_text_file(run / "log.jsonl");
  for (size_t begin = 0, end; begin < text.size(); begin = end + 1) {
    end = text.find('\n', begin);
    Json line = json_of(std::string_view(text).substr(begin, end - begin));
    line.erase("seconds");
    line.erase("tokens_per_s");
    lines.push_back(std::move(line));
  }
  return lines;
}

TEST(TrainState, ARunWhoseExpertsChangeResumesBitForBit) {
  Setting s(R"({"type": "top_k", "k": 2, "balance": true})");
  s.json["experts"] =
      json_of(R"({"grow": [{"at": 4, "to": 8}], "remove": {"below": 0.8, "after": 3, "keep": 3}})");
  s.json["checkpoint"] = {{"every", 1}, {"keep", 0}};
  s.json["train"]["log_every"] = 5;
  const TrainResult whole = s.train("whole");
  const std::vector<Json> lines = log_of(s.folder / "whole");
  int64_t changes = 0, removed = 0;
  std::map<std::string, int64_t> experts;
  for (const Json& line : lines) {
    if (!line.contains("expert_changes")) continue;
    ++changes;
    for (const auto& [mixture, change] : line["expert_changes"].items()) {
      if (experts.contains(mixture)) {
        EXPECT_EQ(experts.at(mixture), change["from"]);
      }
      experts[mixture] = change["to"];
      removed += change.contains("removed") ? 1 : 0;
    }
  }
  EXPECT_GE(changes, 3);
  EXPECT_GE(removed, 2);
  for (const int64_t at : {3, 4, 5, 6, 8}) {
    const std::string name = fmt::format("cut{}", at);
    TrainOptions crash;
    crash.on_step = [at](const LogLine& line, int64_t) {
      if (line.step == at) throw std::runtime_error("crash");
    };
    EXPECT_THROW(s.train(name, crash), std::runtime_error);
    const TrainResult resumed = s.train(name, {.resume = true});
    for (const char* file : {"model.safetensors", "optimizer.safetensors"})
      EXPECT_TRUE(read_text_file(resumed.checkpoint / file) ==
                  read_text_file(whole.checkpoint / file))
          << name << " " << file;
    EXPECT_EQ(log_of(s.folder / name), lines) << name;
  }
  // what generation and evaluation read
  const model::Model model = load_model(whole.checkpoint);
  const convert::Checkpoint checkpoint = convert::load_checkpoint(whole.checkpoint);
  for (const int64_t layer : {0, 1}) {
    const std::string mixture = fmt::format("layers.{}.ffn", layer);
    EXPECT_EQ(experts_of(model, layer), experts.at(mixture));
    EXPECT_EQ(convert::mixtures(checkpoint.spec).at(mixture).n_experts, experts.at(mixture));
  }
  EXPECT_TRUE(at::isfinite(hidden_of(model)).all().item<bool>());
}

TEST(TrainState, RowsThatAreCarriedGoOnWithOtherExperts) {
  Setting s(R"({"type": "top_k", "k": 2})");
  s.json["experts"] = json_of(R"({"grow": [{"at": 4, "to": 8}]})");
  s.json["train"].update({{"windows", "carried"}, {"carry_limit", 64}});
  s.json["checkpoint"] = {{"every", 1}};
  const TrainResult whole = s.train("whole");
  TrainOptions crash;
  crash.on_step = [](const LogLine& line, int64_t) {
    if (line.step == 6) throw std::runtime_error("crash");
  };
  EXPECT_THROW(s.train("cut", crash), std::runtime_error);
  const TrainResult resumed = s.train("cut", {.resume = true});
  for (const char* file : {"model.safetensors", "carried.safetensors"})
    EXPECT_TRUE(read_text_file(resumed.checkpoint / file) ==
                read_text_file(whole.checkpoint / file))
        << file;
}

}  // namespace
}  // namespace tessera::train::train_state_test
