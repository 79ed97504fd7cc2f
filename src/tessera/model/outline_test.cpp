// What is drawn of a model sums up to what `tessera plan` says of it.
#include "tessera/model/outline.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "tessera/model/plan.h"

namespace tessera::model::outline_test {
namespace {

using spec::Json;

ModelSpec zoo(const std::string& name) {
  return load_model_spec(std::string(TESSERA_SOURCE_DIR) + "/zoo/" + name + ".json");
}

int64_t sum(const Json& rows) {
  int64_t all = 0;
  for (const Json& row : rows) all += row["parameters"].get<int64_t>();
  return all;
}

/// Calls `visit` with every branch and how often it comes.
void for_each_branch(const Json& nodes,
                     double times,
                     const std::function<void(const Json&, double)>& visit) {
  for (const Json& node : nodes) {
    if (!node.contains("times")) continue;
    const double often = times * node["times"].get<double>();
    if (node["kind"] == "cycle") {
      for_each_branch(node["nodes"], often, visit);
      continue;
    }
    for (const Json& group : node["groups"])
      for (const Json& branch : group["branches"]) visit(branch, often);
  }
}

TEST(Outline, SumsAreThoseOfThePlan) {
  for (const char* name :
       {"llama/smollm2-135m", "gemma3/gemma3-1b", "mamba2/mamba2-130m", "zamba/zamba2-2.7b",
        "bert/bert-base-uncased", "bart/bart-base", "mixtral/mixtral-8x7b",
        "deepseek/deepseek-v2-lite", "vit/vit-base-patch16-224", "t5/switch-base-8"}) {
    const ModelSpec spec = zoo(name);
    const Json found = outline(spec, 1024);
    const Plan plan = make_plan(spec, 1024);
    EXPECT_EQ(found["plan"], to_json(plan)) << name;
    EXPECT_EQ(sum(found["by_kind"]), plan.parameters) << name;
    EXPECT_EQ(sum(found["by_place"]), plan.parameters) << name;
    for (const Json& row : found["by_place"]) EXPECT_NE(row["name"], "other") << name;
    EXPECT_EQ(found["contexts"].back()["state_bytes"], plan.state_bytes) << name;
    int64_t shown = 0;
    bool shared = false;
    double state = 0;
    for (const Json& stack : found["stacks"]) {
      for (const Json& node : stack["nodes"])
        if (node.contains("parameters")) shown += node["parameters"].get<int64_t>();
      for_each_branch(stack["nodes"], 1, [&](const Json& branch, double times) {
        shown += static_cast<int64_t>(times) * branch["parameters"].get<int64_t>();
        state += times * branch["state_bytes"].get<double>();
        shared |= branch.contains("share");
      });
    }
    // shared parameters are shown where they are used
    if (!shared && !spec.shared_tokens) {
      EXPECT_EQ(shown, plan.parameters) << name;
    } else {
      EXPECT_GE(shown, plan.parameters) << name;
    }
    EXPECT_EQ(static_cast<int64_t>(state), plan.state_bytes) << name;
  }
}

TEST(Outline, FlopsOfBranchesAndHeadMakeUpThePlan) {
  const ModelSpec spec = zoo("llama/smollm2-135m");
  const Json found = outline(spec, 2048);
  double flops = 2.0 * 49152 * 576;
  for_each_branch(found["stacks"][0]["nodes"], 1, [&](const Json& branch, double times) {
    flops += times * branch["flops"].get<double>();
  });
  EXPECT_DOUBLE_EQ(flops, make_plan(spec, 2048).flops_per_token);
}

TEST(Outline, FoldsWhatRepeats) {
  const Json llama = outline(zoo("llama/smollm2-135m"), 64)["stacks"][0]["nodes"];
  ASSERT_EQ(llama.size(), 4u);
  EXPECT_EQ(llama[1]["kind"], "layers");
  EXPECT_EQ(llama[1]["times"], 30);
  EXPECT_EQ(llama[1]["last"], 29);
  const Json& mixer = llama[1]["groups"][0]["branches"][0];
  EXPECT_EQ(mixer["type"], "attention");
  EXPECT_EQ(mixer["norms"], Json::array({"rms_norm"}));
  std::map<std::string, Json> shapes;
  for (const Json& tensor : mixer["tensors"]) shapes[tensor["name"]] = tensor["shape"];
  EXPECT_EQ(shapes.at("k.weight"), Json::array({192, 576}));
  EXPECT_EQ(shapes.at("mixer_norm.weight"), Json::array({576}));

  // two recurrent layers and one of attention eight times, then two recurrent ones
  const Json griffin = outline(zoo("hybrid/griffin-2b"), 64)["stacks"][0]["nodes"];
  const Json* cycle = nullptr;
  for (const Json& node : griffin)
    if (node["kind"] == "cycle") cycle = &node;
  ASSERT_NE(cycle, nullptr);
  EXPECT_EQ((*cycle)["times"], 8);
  ASSERT_EQ((*cycle)["nodes"].size(), 2u);
  EXPECT_EQ((*cycle)["nodes"][0]["times"], 2);
  EXPECT_EQ((*cycle)["nodes"][1]["groups"][0]["branches"][0]["type"], "attention");
}

TEST(Outline, NamesTheMixersOfTheStackThatReads) {
  EXPECT_EQ(outline(zoo("llama/smollm2-135m"), 64)["mixers"].size(), 30u);
  EXPECT_EQ(outline(zoo("bart/bart-base"), 64)["mixers"][0]["name"], "encoder.layers.0.mixer");
}

}  // namespace
}  // namespace tessera::model::outline_test
