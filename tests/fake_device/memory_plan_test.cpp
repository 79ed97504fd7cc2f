// Memory that is planned without a device, against what the test device held at most.
#include <gtest/gtest.h>

#include "fake_device/tested_device.h"
#include "tessera/model/memory_plan.h"
#include "tessera/model/model_testing.h"
#include "tessera/model/placement.h"
#include "tessera/model/state.h"
#include "tessera/ops/device_memory.h"
#include "tessera/train/loop/loop.h"
#include "tessera/train/loop/memory_plan.h"
#include "tessera/train/loop/trial_steps.h"
#include "tessera/train/train_testing.h"

namespace tessera::train::memory_plan_device_test {
namespace {

class MemoryOnDevice : public testing::Test {
 protected:
  void SetUp() override {
    if (!test::is_test_device()) GTEST_SKIP() << "blocks of CUDA's allocator are larger than these";
  }
  Recipe recipe(const std::vector<std::string>& changes) const {
    return read_recipe(json_, "", changes);
  }
  /// What two updates held at most.
  int64_t held(const Recipe& recipe) const {
    ops::reset_peak_memory(there_);
    const int64_t before = ops::peak_memory(there_).value();
    const auto objective = open_objective(recipe, folder_ / "cache", nullptr, there_);
    TrainOptions options;
    options.device = there_;
    Loop loop(recipe, folder_ / "cache", *objective, any_learner(recipe, *objective, there_),
              options);
    loop.try_update();
    loop.try_update();
    return ops::peak_memory(there_).value() - before;
  }
  model::MemoryPlan planned(const Recipe& recipe) const {
    return training_memory(recipe, folder_ / "cache", there_.type());
  }

  const at::Device there_ = test::tested_device();
  TemporaryFolder folder_;
  Json json_ = [this] {
    Json json = tiny_recipe(folder_.write("text.txt", counting_text(40000)));
    json["spec"]["d_model"] = 64;
    json["spec"]["ffn"]["d_hidden"] = 128;
    json["train"]["length"] = 128;
    return json;
  }();
};

TEST_F(MemoryOnDevice, TrainingIsWithinThreePercent) {
  for (
      const std::vector<std::string>& changes : std::vector<std::vector<std::string>>{
          {},
          {"train.batch=8"},
          {"train.accumulate=3", "train.batch=2"},
          {R"(train.recompute={"of": "layers"})", "train.batch=8"},
          {R"(train.precision="bf16")"},
          {R"(optimizer={"type": "lion", "lr": 0.001})"},
          {R"(optimizer={"type": "muon"})"},
          {R"(optimizer={"type": "adamw", "lr": 0.01, "average": {"decay": 0.9}})"},
          {R"(spec.layers=[{"mixer": {"type": "mamba2", "n_heads": 4, "d_state": 16}}])"},
          {R"(spec.layers=[{"mixer": {"type": "gated_delta_net", "n_heads": 4, "key_dim": 16, "value_dim": 16}}])"},
          {R"(spec.layers=[{"mixer": {"type": "attention", "n_heads": 4, "n_kv_heads": 2,
               "pattern": {"type": "window", "width": 32}}}])"},
          {R"(spec.ffn={"type": "moe", "n_experts": 4, "expert": {"type": "glu", "d_hidden": 64},
               "router": {"type": "top_k", "k": 2}})"}}) {
    const Recipe own = recipe(changes);
    const model::MemoryPlan plan = planned(own);
    const std::string what = changes.empty() ? "plain" : changes[0];
    ASSERT_EQ(plan.unknown, "") << what;
    const int64_t most = held(own);
    EXPECT_NEAR(static_cast<double>(plan.total()), static_cast<double>(most),
                0.03 * static_cast<double>(most))
        << what << ": weights " << plan.weights << ", gradients " << plan.gradients
        << ", optimizer " << plan.optimizer << ", activations " << plan.activations;
  }
}

TEST_F(MemoryOnDevice, PartsAreThoseOfTheOptimizer) {
  const Recipe adamw = recipe({}), lion = recipe({R"(optimizer={"type": "lion", "lr": 0.001})"}),
               average = recipe(
                   {R"(optimizer={"type": "lion", "lr": 0.001, "average": {"decay": 0.9}})"});
  const int64_t weights = planned(adamw).weights;
  EXPECT_EQ(planned(adamw).gradients, weights);
  EXPECT_EQ(planned(adamw).optimizer, 2 * weights);
  EXPECT_EQ(planned(lion).optimizer, weights);
  EXPECT_EQ(planned(lion).average, 0);
  EXPECT_EQ(planned(average).average, weights);
  // recomputation keeps the input of a layer instead of what is in it
  const std::vector<std::string> deep{R"(spec.layers=[{"repeat": 8, "mixer": {"type": "attention",
                                          "n_heads": 2}}])",
                                      "train.batch=8"};
  std::vector<std::string> again = deep;
  again.emplace_back(R"(train.recompute={"of": "layers"})");
  EXPECT_LT(planned(recipe(again)).activations, planned(recipe(deep)).activations / 2);
}

TEST_F(MemoryOnDevice, FusedAttentionHoldsNoScores) {
  const std::vector<std::string> change{"train.length=512", "train.batch=2"};
  const int64_t scores = int64_t{2} * 2 * 512 * 512 * 4;  // batch, heads, float32
  const int64_t math = planned(recipe(change)).activations,
                fused = training_memory(recipe(change), folder_ / "cache").activations;
  EXPECT_GT(math - fused, 2 * scores);  // of both layers
}

TEST_F(MemoryOnDevice, InferenceIsWithinThreePercent) {
  for (const char* mixer :
       {R"({"type": "attention", "n_heads": 4, "n_kv_heads": 2, "position": {"type": "rope"}})",
        R"({"type": "mamba2", "n_heads": 4, "d_state": 16})"}) {
    Json spec = json_["spec"];
    spec["layers"][0]["mixer"] = json_of(mixer);
    const model::ModelSpec read = model::read_model_spec(spec);
    const model::Model model{read, model::Weights::initial(read, 1)};
    const model::MemoryPlan plan =
        model::inference_memory(model, {.context = 300, .chunk = 128}, there_.type());
    ASSERT_EQ(plan.unknown, "") << mixer;
    EXPECT_EQ(plan.weights, model::bytes_on_device(model));
    ops::reset_peak_memory(there_);
    const int64_t before = ops::peak_memory(there_).value();
    const at::NoGradGuard no_graph;
    const model::Model there = model::to_device(model, there_);
    model::State state(read, 1, 0, at::TensorOptions(there_).dtype(at::kFloat));
    model::ForwardOptions options;
    options.state = &state;
    for (int64_t begin = 0; begin < 300; begin += 128) {
      const int64_t n = std::min<int64_t>(128, 300 - begin);
      const Tensor hidden = there.hidden(
          nn::Batch::of({std::vector<int64_t>(static_cast<size_t>(n), 7)}, {begin}), options);
      there.logits(hidden.narrow(0, n - 1, 1));
    }
    const auto most = static_cast<double>(ops::peak_memory(there_).value() - before);
    EXPECT_NEAR(static_cast<double>(plan.total()), most, 0.03 * most) << mixer;
  }
}

TEST_F(MemoryOnDevice, WhatNeedsNumbersIsUnknown) {
  // its tokens are chosen by their scores, on the host
  Json spec = json_["spec"];
  spec["layers"][0]["depth"] = json_of(R"({"type": "mixture_of_depths", "capacity": 0.5})");
  json_["spec"] = spec;
  const model::MemoryPlan plan = planned(recipe({}));
  EXPECT_NE(plan.unknown, "");
  EXPECT_EQ(plan.activations, 0);
  EXPECT_EQ(plan.gradients, plan.weights);
}

}  // namespace
}  // namespace tessera::train::memory_plan_device_test
