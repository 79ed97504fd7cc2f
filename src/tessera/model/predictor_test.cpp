// Predictors of tokens further ahead: what they compute, their state, their parameters, and specs
// that are refused.
#include <gmock/gmock.h>

#include "tessera/base/testing.h"
#include "tessera/model/model.h"
#include "tessera/model/model_testing.h"
#include "tessera/ops/ops_testing.h"

namespace tessera::model::predictor_test {
namespace {

using ops::gen;
using testing::HasSubstr;

constexpr const char* kModules = R"([{"repeat": 2, "layers": [{}]}])";
constexpr const char* kHeads = R"([{"reads": "trunk", "token": false, "layers": [{}]},
                                   {"reads": "trunk", "token": false, "layers": [{}]}])";

Json tiny(const char* predictors, const char* patch = "{}") {
  Json json = spec::parse_json(R"({
    "tessera": 1, "arch": "decoder", "vocab": 13, "d_model": 8,
    "mixer": {"type": "attention", "n_heads": 2, "position": "rope"},
    "ffn": {"type": "glu", "d_hidden": 12},
    "layers": [{"repeat": 2}]})",
                               "test");
  if (predictors != nullptr) json["predictors"] = spec::parse_json(predictors, "test");
  json.merge_patch(spec::parse_json(patch, "test"));
  return json;
}

TEST(Predictors, JoinTheTokenAheadWithTheHiddenState) {
  // without a layer that does anything, what is left is the join: norm(W [e ; h])
  Json json = tiny(R"([{"layers": [{}]}])");
  const ModelSpec spec = read_model_spec(json);
  Weights weights = Weights::initial(spec, 3);
  const auto at_name = [&](const std::string& name) { return weights.find(name)->dense_tensor(); };
  const at::NoGradGuard no_gradients;
  at_name("predictors.0.layers.0.mixer.o.weight").zero_();
  at_name("predictors.0.layers.0.ffn.down.weight").zero_();
  at_name("predictors.0.join.weight").copy_(gen({8, 16}, 0.31, 0.2));
  at_name("predictors.0.token_norm.weight").copy_(gen({8}, 0.7, 0.4) + 1);
  at_name("predictors.0.hidden_norm.weight").copy_(gen({8}, 0.5, 0.1) + 1);
  at_name("predictors.0.final_norm.weight").copy_(gen({8}, 0.9, 0.3) + 1);
  const Model model(spec, std::move(weights));
  const std::vector<int64_t> ids = {3, 1, 4, 1, 5};
  const Tensor hidden = gen({5, 8}, 0.6, 0.15).to(at::kFloat);
  const Tensor out =
      model.predict(0, hidden, nn::Batch::of(std::vector<std::vector<int64_t>>{ids}));

  const auto w = [&](const char* name) {
    return model.weights().find(name)->dense_tensor().to(at::kDouble);
  };
  const auto rms = [](const Tensor& x, const Tensor& weight) {
    return x * at::rsqrt(x.square().mean(-1, true) + 1e-6) * weight;
  };
  const Tensor e = w("embed.token.weight").index_select(0, at::tensor(ids, at::kLong));
  const Tensor joined =
      at::matmul(at::cat({rms(e, w("predictors.0.token_norm.weight")),
                          rms(hidden.to(at::kDouble), w("predictors.0.hidden_norm.weight"))},
                         -1),
                 w("predictors.0.join.weight").t());
  EXPECT_TRUE(at::allclose(out.to(at::kDouble), rms(joined, w("predictors.0.final_norm.weight")),
                           1e-4, 1e-5));
}

TEST(Predictors, GoOnFromAStateOfTheirOwn) {
  for (const char* kind : {kModules, kHeads}) {
    const ModelSpec spec = read_model_spec(tiny(kind));
    const Model model(spec, Weights::initial(spec, 3));
    const at::NoGradGuard no_gradients;
    const std::vector<int64_t> ids = {3, 1, 4, 1, 5, 9, 2};
    const Tensor hidden = gen({7, 8}, 0.6, 0.15).to(at::kFloat);
    const Tensor whole =
        model.predict(1, hidden, nn::Batch::of(std::vector<std::vector<int64_t>>{ids}));
    State state(*spec.predictors[1].stack, 1);
    std::vector<Tensor> parts;
    for (int64_t at = 0; at < 7; at += at == 0 ? 3 : 1) {
      const int64_t n = at == 0 ? 3 : 1;
      ForwardOptions options;
      options.state = &state;
      parts.push_back(model.predict(1, hidden.narrow(0, at, n),
                                    nn::Batch::of({{ids.begin() + at, ids.begin() + at + n}}, {at}),
                                    options));
    }
    EXPECT_TRUE(at::equal(at::cat(parts), whole));
  }
}

TEST(Predictors, LeaveTheDecoderAsItIs) {
  const Json with = tiny(kModules), without = tiny(nullptr);
  const ModelSpec spec = read_model_spec(with);
  const Model model(spec, Weights::initial(spec, 3)),
      plain(read_model_spec(without), Weights::initial(read_model_spec(without), 3));
  const nn::Batch batch = nn::Batch::of(std::vector<std::vector<int64_t>>{{3, 1, 4, 1, 5}});
  EXPECT_TRUE(at::equal(model.hidden(batch), plain.hidden(batch)));
  EXPECT_EQ(state_layout(spec).size(), 2U);
}

TEST(Predictors, AreWrittenOutAndReadBack) {
  for (const char* kind : {kModules, kHeads}) {
    const Json resolved = resolve(read_model_spec(tiny(kind)));
    EXPECT_EQ(resolved["predictors"].size(), 1U);
    EXPECT_EQ(resolved["predictors"][0]["repeat"], 2);
    EXPECT_EQ(resolve(read_model_spec(resolved)), resolved);
  }
  int64_t extra = 0, plain = 0;
  for (const spec::ParamDecl& decl : parameters(read_model_spec(tiny(kModules))))
    (decl.name.starts_with("predictors.") ? extra : plain) += decl.elements();
  // two norms, the join, a layer with its norms (4 d^2 of attention, 3 d f of the ffn), a final
  // norm
  EXPECT_EQ(extra, 2 * (2 * 8 + 8 * 16 + 2 * 8 + 4 * 8 * 8 + 3 * 8 * 12 + 8));
}

TEST(Predictors, MtpIsAnotherNameOfTheKey) {
  Json named = tiny(nullptr);
  named["mtp"] = spec::parse_json(kModules, "test");
  EXPECT_EQ(resolve(read_model_spec(named)), resolve(read_model_spec(tiny(kModules))));
  named["predictors"] = named["mtp"];
  EXPECT_THAT(error_of(named), HasSubstr("[predictors] \"mtp\" is another name of it"));
}

TEST(Predictors, AreRefusedWhereTheyDoNotFit) {
  EXPECT_THAT(error_of(tiny(kModules, R"({"arch": "encoder"})")),
              HasSubstr("[predictors] arch is \"encoder\""));
  EXPECT_THAT(error_of(tiny(R"([{"reads": "h", "layers": [{}]}])")),
              HasSubstr("[predictors[0].reads] found \"h\"; expected \"trunk\" or \"previous\""));
  EXPECT_THAT(error_of(tiny(R"([{"layers": []}])")), HasSubstr("predictors[0].layers"));
  EXPECT_THAT(error_of(tiny(R"([{"layers": [{}], "embed": "token"}])")),
              HasSubstr("unknown key \"embed\""));
  EXPECT_THAT(error_of(tiny(R"([{"repeat": 65, "layers": [{}]}])")), HasSubstr("1 to 64"));
  EXPECT_THAT(error_of(tiny(R"({"layers": [{}]})")), HasSubstr("expected a list"));
  EXPECT_THAT(error_of(tiny(
                  R"([{"layers": [{}], "residual": {"type": "reversible", "merge": "concat"}}])")),
              HasSubstr("ends with 16 channels; the head reads 8"));
}

}  // namespace
}  // namespace tessera::model::predictor_test
