// Dense layers into experts and back, on golden checkpoints: what they compute before and after.
#include <gmock/gmock.h>

#include "tessera/base/mapped_file.h"
#include "tessera/base/testing.h"
#include "tessera/convert/experts.h"
#include "tessera/infer/evaluation/expert_use.h"
#include "tessera/infer/loading/load_model.h"

namespace tessera::infer::experts_surgery_test {
namespace {

using convert::Checkpoint;
using convert::ExpertLoads;
using testing::HasSubstr;

Checkpoint golden(const std::string& family, const char* name = "base") {
  return convert::load_checkpoint(std::filesystem::path(TESSERA_SOURCE_DIR) /
                                  "tests/golden/families" / family / name);
}

model::Model model_of(const Checkpoint& checkpoint) {
  return {model::read_model_spec(checkpoint.spec_json), weights_of(checkpoint)};
}

Tensor logits_of(const Checkpoint& checkpoint, ExpertUse* use = nullptr) {
  const at::NoGradGuard no_gradients;
  const model::Model model = model_of(checkpoint);
  model::ForwardOptions options;
  if (use != nullptr)
    options.add_statistic = [use](const std::string& name, const Tensor& value) {
      use->add(name, value);
    };
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < 24; ++i) ids.push_back((7 * i * i + 3) % checkpoint.spec.vocab);
  return model.logits(model.hidden(nn::Batch::of(std::vector<std::vector<int64_t>>{ids}), options));
}

double error_of(const Tensor& a, const Tensor& b) {
  return ((a - b).norm() / b.norm()).item<double>();
}

ExpertLoads loads_of(const Checkpoint& checkpoint) {
  ExpertUse use;
  logits_of(checkpoint, &use);
  const test::TemporaryFolder folder;
  return convert::read_expert_loads(
      folder.write("use.json", spec::Json{{"experts", use.to_json()}}.dump()));
}

std::string refused(const std::function<void()>& act) {
  return test::error_of(ErrorKind::usage, act);
}

TEST(ExpertSurgery, UpcyclingKeepsTheFunction) {
  for (const char* family : {"llama", "gpt2", "qwen2"})
    for (const int64_t k : {1, 3}) {
      const Checkpoint dense = golden(family);
      const Checkpoint experts = convert::upcycled(golden(family), {.n_experts = 4, .k = k});
      EXPECT_LT(error_of(logits_of(experts), logits_of(dense)), 1e-5) << family << " " << k;
      const auto counts = [](const Checkpoint& c) { return model::parameters(c.spec).size(); };
      EXPECT_GT(counts(experts), counts(dense));
      // the router is not one of zeros, which would use the first k alone
      const auto loads = loads_of(experts);
      ASSERT_EQ(loads.size(), dense.spec.layers.size());
      for (const auto& [router, load] : loads)
        EXPECT_LT(*std::max_element(load.begin(), load.end()), 0.95) << router;
      // and back: the mean of equal layers is the layer
      const Checkpoint merged = convert::merged_experts(experts, {});
      EXPECT_EQ(merged.spec_json, dense.spec_json) << family;
      EXPECT_LT(error_of(logits_of(merged), logits_of(dense)), 1e-6) << family;
    }
}

TEST(ExpertSurgery, UpcyclingOfEverySecondLayer) {
  const Checkpoint experts =
      convert::upcycled(golden("llama"), {.n_experts = 4, .k = 2, .every = 2});
  int64_t mixtures = 0;
  for (const auto& [router, load] : loads_of(experts)) {
    EXPECT_THAT(router, HasSubstr("layers.1."));
    ++mixtures;
  }
  EXPECT_EQ(mixtures, static_cast<int64_t>(golden("llama").spec.layers.size()) / 2);
  EXPECT_LT(error_of(logits_of(experts), logits_of(golden("llama"))), 1e-5);
}

TEST(ExpertSurgery, MergingWeighsByUse) {
  Checkpoint mixtral = golden("mixtral");
  const int64_t experts = mixtral.spec_json["layers"][0]["branches"][1]["ffn"]["n_experts"];
  ExpertLoads use;
  std::vector<double> load(static_cast<size_t>(experts), 0.0);
  load[0] = 3;
  load[2] = 1;
  for (size_t i = 0; i < mixtral.spec.layers.size(); ++i)
    use[fmt::format("layers.{}.ffn.router", i)] = load;
  const Checkpoint merged = convert::merged_experts(mixtral, use);
  const auto tensor = [](const Checkpoint& c, const char* name) {
    return weights_of(c).find(name)->tensor().to(at::kDouble);
  };
  const Tensor stack = tensor(mixtral, "layers.0.ffn.experts.up.weight");
  EXPECT_TRUE(at::allclose(tensor(merged, "layers.0.ffn.up.weight"),
                           0.75 * stack[0] + 0.25 * stack[2], 1e-6, 1e-7));
  use.erase("layers.1.ffn.router");
  EXPECT_THAT(refused([&] { convert::merged_experts(mixtral, use); }),
              HasSubstr("the use of \"layers.1.ffn.router\" is not among"));
}

TEST(ExpertSurgery, PruningKeepsTheMostUsed) {
  const Checkpoint mixtral = golden("mixtral");
  const int64_t experts = mixtral.spec_json["layers"][0]["branches"][1]["ffn"]["n_experts"];
  const ExpertLoads use = loads_of(mixtral);
  // all of them: nothing changes
  EXPECT_TRUE(
      at::equal(logits_of(convert::pruned_experts(mixtral, experts, use)), logits_of(mixtral)));
  // an expert that the router never takes is not missed
  Checkpoint wider = golden("llama");
  wider = convert::upcycled(std::move(wider), {.n_experts = 4, .k = 2});
  ExpertLoads told = loads_of(wider);
  for (auto& [router, load] : told) load = {0.3, 0, 0.2, 0.5};
  const Checkpoint pruned = convert::pruned_experts(wider, 3, told);
  const auto rows = [](const Checkpoint& c) {
    return weights_of(c).find("layers.0.ffn.router.gate.weight")->tensor();
  };
  EXPECT_TRUE(at::equal(rows(pruned), rows(wider).index_select(0, at::tensor({0, 2, 3}))));
  EXPECT_LT(error_of(logits_of(pruned), logits_of(golden("llama"))), 1e-5);
}

TEST(ExpertSurgery, GrowingCopiesTheMostUsed) {
  const Checkpoint mixtral = golden("mixtral");
  const int64_t experts = mixtral.spec_json["layers"][0]["branches"][1]["ffn"]["n_experts"];
  const ExpertLoads use = loads_of(mixtral);
  // twice the experts and twice the choices, whose weights are normalised
  const Checkpoint twice =
      convert::grown_experts(mixtral, {.n_experts = 2 * experts, .k = 4, .noise = 0}, use);
  EXPECT_LT(error_of(logits_of(twice), logits_of(mixtral)), 1e-5);
  EXPECT_EQ(convert::mixtures(twice.spec).at("layers.1.ffn").k, 4);
  // one more: the most used, a little apart
  const Checkpoint more = convert::grown_experts(mixtral, {.n_experts = experts + 1}, use);
  const std::vector<double>& load = use.at("layers.0.ffn.router");
  const int64_t most = std::max_element(load.begin(), load.end()) - load.begin();
  for (const char* name : {"experts.up.weight", "router.gate.weight"}) {
    const auto rows = [&](const Checkpoint& c) {
      return weights_of(c).find(std::string("layers.0.ffn.") + name)->tensor();
    };
    const Tensor old = rows(mixtral), now = rows(more);
    EXPECT_TRUE(at::equal(now.narrow(0, 0, experts), old)) << name;
    const double apart = error_of(now[experts], old[most]);
    EXPECT_GT(apart, 0.002) << name;
    EXPECT_LT(apart, 0.03) << name;
  }
  EXPECT_THAT(refused([&] { convert::grown_experts(mixtral, {.n_experts = experts}, use); }),
              HasSubstr("no mixture of fewer than"));
  EXPECT_THAT(refused([&] { convert::grown_experts(mixtral, {.n_experts = 2 * experts}, {}); }),
              HasSubstr("which experts are used is not known"));
}

TEST(ExpertSurgery, WhatCannotBeIsRefused) {
  EXPECT_THAT(refused([&] { convert::upcycled(golden("llama"), {.n_experts = 2, .k = 3}); }),
              HasSubstr("3 of 2 experts"));
  EXPECT_THAT(refused([&] { convert::upcycled(golden("mixtral"), {}); }), HasSubstr("found moe"));
  EXPECT_THAT(refused([&] { convert::merged_experts(golden("llama"), {}); }),
              HasSubstr("no mixture of experts"));
  EXPECT_THAT(refused([&] { convert::merged_experts(golden("qwen2_moe"), {}); }),
              HasSubstr("a mixture with a shared layer"));
  EXPECT_THAT(
      refused([&] { convert::merged_experts(golden("nemotron_h", "moe_latent_size"), {}); }),
      HasSubstr("a mixture with projections around its experts"));
  EXPECT_THAT(refused([&] { convert::pruned_experts(golden("mixtral"), 2, {}); }),
              HasSubstr("which experts are used is not known"));
  EXPECT_THAT(
      refused([&] { convert::pruned_experts(golden("mixtral"), 1, loads_of(golden("mixtral"))); }),
      HasSubstr("of which a token uses 2"));
  const test::TemporaryFolder folder;
  for (const char* text : {"[]", "{}", "3", R"({"r": {"load": [-1]}})", R"({"r": {"load": 2}})"})
    EXPECT_NE(test::error_of(ErrorKind::file,
                             [&] { convert::read_expert_loads(folder.write("u.json", text)); }),
              "")
        << text;
}

}  // namespace
}  // namespace tessera::infer::experts_surgery_test
