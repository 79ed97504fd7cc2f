// Parts that read the ids before a token: in one call, in calls that go on from a state, over the
// tokens that a layer chooses, after a roll-back, from a file.
#include <gmock/gmock.h>

#include "tessera/base/testing.h"
#include "tessera/model/model.h"
#include "tessera/model/model_testing.h"
#include "tessera/model/state_testing.h"
#include "tessera/nn/router/hash.h"

namespace tessera::model::ids_before_test {
namespace {

using testing::HasSubstr;

Json tiny(const char* patch = "{}") {
  Json json = spec::parse_json(R"({
    "tessera": 1, "arch": "decoder", "vocab": 13, "d_model": 8,
    "mixer": {"type": "attention", "n_heads": 2, "position": "rope"},
    "ffn": {"type": "moe", "n_experts": 5, "expert": {"type": "glu", "d_hidden": 6},
            "router": {"type": "hash", "ids": 3, "seed": 4}},
    "layers": [{"repeat": 2}]})",
                               "test");
  json.merge_patch(spec::parse_json(patch, "test"));
  return json;
}

Continued decoder(const char* patch = "{}") {
  const ModelSpec spec = read_model_spec(tiny(patch));
  return Continued(Model(spec, Weights::initial(spec, 3)));
}

TEST(IdsBefore, AreTheLastOnesOfTheDocument) {
  // loads tell which runs of ids the router was given: every wrong one changes its expert
  const Continued run = decoder();
  nn::HashRouterConfig config;
  config.ids = 3;
  config.seed = 4;
  const std::vector<std::vector<int64_t>> rows = {{3, 1, 4, 1, 5}, {4, 1}};
  std::vector<int64_t> expected(5, 0);
  for (const auto& row : rows)
    for (size_t i = 0; i < row.size(); ++i) {
      const std::vector<int64_t> last = {row[i], i > 0 ? row[i - 1] : -1, i > 1 ? row[i - 2] : -1};
      ++expected[static_cast<size_t>(config.expert(last, 5))];
    }
  std::vector<int64_t> loads(5, 0);
  ForwardOptions options;
  options.add_statistic = [&](const std::string& name, const Tensor& value) {
    if (name != "layers.0.ffn.router.load") return;
    for (int64_t e = 0; e < 5; ++e) loads[static_cast<size_t>(e)] += value[e].item<int64_t>();
  };
  run.model().hidden(nn::Batch::of(rows), options);
  EXPECT_EQ(loads, expected);
}

TEST(IdsBefore, SpreadRunsOverTheExperts) {
  nn::HashRouterConfig config;
  config.ids = 2;
  std::vector<int> counts(8, 0);
  bool order_matters = false;
  for (int64_t a = 0; a < 64; ++a)
    for (int64_t b = 0; b < 64; ++b) {
      const int64_t e = config.expert(std::vector<int64_t>{a, b}, 8);
      ++counts[static_cast<size_t>(e)];
      order_matters = order_matters || e != config.expert(std::vector<int64_t>{b, a}, 8);
    }
  // 4096 draws of 1/8: six standard deviations are 127
  for (const int n : counts) EXPECT_NEAR(n, 512, 127);
  EXPECT_TRUE(order_matters);
}

TEST(IdsBefore, ComeFromTheStateInAnyCuts) {
  decoder().expect_any_cuts();
}

TEST(IdsBefore, FollowARollBackAForkAndAFile) {
  decoder().expect_roll_back();
}

TEST(IdsBefore, AreTheDocumentsWhereALayerChoosesTokens) {
  // inference chooses by the predictor, token by token
  decoder(R"({"depth": {"type": "mixture_of_depths", "capacity": 0.5}})").expect_any_cuts();
}

TEST(IdsBefore, OfARowWithoutAStateAreRefused) {
  const Continued run = decoder();
  EXPECT_THAT(test::error_of(ErrorKind::usage,
                             [&] {
                               run.model().hidden(nn::Batch::of({{1, 2}}, {3}));
                             }),
              HasSubstr("2 ids before a token"));
  EXPECT_THAT(error_of(tiny(R"({"ffn": {"router": {"table": "modulo"}}})")),
              HasSubstr("runs of ids are hashed"));
  EXPECT_THAT(error_of(tiny(R"({"ffn": {"router": {"ids": 65}}})")), HasSubstr("found 65; expected at most 64"));
}

}  // namespace
}  // namespace tessera::model::ids_before_test
