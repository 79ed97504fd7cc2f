// Calls of the first layers alone.
#include <gmock/gmock.h>

#include "tessera/base/testing.h"
#include "tessera/model/large_weights_testing.h"
#include "tessera/model/model.h"
#include "tessera/model/model_testing.h"
#include "tessera/model/state_testing.h"

namespace tessera::model::early_exit_test {
namespace {

using testing::HasSubstr;

ModelSpec spec_of(const char* patch) {
  Json json = spec::parse_json(R"({
    "tessera": 1, "arch": "decoder", "vocab": 13, "d_model": 8,
    "mixer": {"type": "attention", "n_heads": 2, "position": "rope"},
    "ffn": {"type": "glu", "d_hidden": 12},
    "layers": [{"repeat": 3}]})",
                               "test");
  json.merge_patch(spec::parse_json(patch, "test"));
  return read_model_spec(json);
}

TEST(EarlyExit, IsTheFinalNormOfWhatALayerHandsOn) {
  const ModelSpec spec = spec_of("{}");
  const Model model(spec, Weights::initial(spec, 5));
  const at::NoGradGuard no_gradients;
  const nn::Batch batch = nn::Batch::of({{3, 1, 4, 1, 5}, {9, 2}});
  std::map<std::string, Tensor> seen;
  ForwardOptions options;
  options.probe = [&](const std::string& name, const Tensor& value) { seen[name] = value; };
  const Tensor whole = model.hidden(batch, options);
  EXPECT_TRUE(at::equal(model.exit(seen.at("layers.2.out"), 3), whole));
  for (int64_t layers = 1; layers <= 3; ++layers) {
    ForwardOptions first;
    first.layers = layers;
    EXPECT_TRUE(at::equal(model.hidden(batch, first),
                          model.exit(seen.at(fmt::format("layers.{}.out", layers - 1)), layers)));
  }
}

TEST(EarlyExit, OfAStackOfFewerLayersIsThatStack) {
  const ModelSpec spec = spec_of("{}"), two = spec_of(R"({"layers": [{"repeat": 2}]})");
  const Model model(spec, Weights::initial(spec, 5)), shorter(two, Weights::initial(two, 5));
  const at::NoGradGuard no_gradients;
  for (const auto& [decl, weight] : shorter.weights().all())
    Tensor(weight->dense_tensor()).copy_(model.weights().find(decl.name)->dense_tensor());
  const nn::Batch batch = nn::Batch::of(std::vector<std::vector<int64_t>>{{3, 1, 4, 1, 5}});
  ForwardOptions options;
  options.layers = 2;
  EXPECT_TRUE(at::equal(model.hidden(batch, options), shorter.hidden(batch)));
}

TEST(EarlyExit, BetweenStreamsIsRefused) {
  EXPECT_THAT(spec_of(R"({"residual": "hyper_connections"})").no_exit_reason(2),
              HasSubstr("carries more than one stream"));
  EXPECT_EQ(spec_of(R"({"residual": "hyper_connections"})").no_exit_reason(3), "");
  const ModelSpec loop = spec_of(R"({"depth": "adaptive_computation"})");
  EXPECT_THAT(loop.no_exit_reason(2), HasSubstr("is inside a loop"));
  EXPECT_EQ(loop.no_exit_reason(3), "");
  EXPECT_THAT(spec_of("{}").no_exit_reason(0), HasSubstr("layer 0; expected 1 to 3"));
}

TEST(Loops, NeighboursOfOneNameAreSteps) {
  const ModelSpec spec = spec_of(R"({"layers": [
      {"repeat": 2, "share": "a", "depth": {"type": "adaptive_computation", "gate": "one"}},
      {"depth": {"type": "adaptive_computation", "gate": "two"}}, {},
      {"depth": {"type": "adaptive_computation", "gate": "two"}}]})");
  std::vector<std::pair<bool, bool>> where;
  for (int64_t i = 0; i < 5; ++i) where.emplace_back(spec.loop_of(i).begins, spec.loop_of(i).ends);
  using testing::ElementsAre;
  using testing::Pair;
  EXPECT_THAT(where, ElementsAre(Pair(true, false), Pair(false, true), Pair(true, true),
                                 Pair(true, true), Pair(true, true)));
}

TEST(Loops, TokensTakeAsManyStepsInAnyCuts) {
  const ModelSpec spec = spec_of(R"({"layers": [{"repeat": 5, "share": "step"}],
      "depth": {"type": "adaptive_computation", "threshold": 0.2}})");
  const Continued run(Model(spec, large_weights(spec, 5)));
  std::map<std::string, double> steps;
  ForwardOptions options;
  options.add_statistic = [&](const std::string& name, const Tensor& value) {
    steps[name] += value.item<double>();
  };
  run.whole(options);
  // some tokens halt before the last step, and not all after the first
  EXPECT_EQ(steps.size(), 1U);  // the layers share their names
  EXPECT_GT(steps.begin()->second, 12 + 6);
  EXPECT_LT(steps.begin()->second, 5 * 12 - 6);
  run.expect_any_cuts();
}

}  // namespace
}  // namespace tessera::model::early_exit_test
