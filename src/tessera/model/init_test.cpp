// Initialisations: what each draws for every use of a matrix, from its paper's formula, and how the
// rates of muP reach an optimiser's groups.
#include <cmath>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/testing.h"
#include "tessera/model/model_testing.h"
#include "tessera/nn/init/deep_norm.h"
#include "tessera/ops/tensor.h"

namespace tessera::model::init_test {
namespace {

using spec::Init;
using testing::HasSubstr;

/// Two layers of width 12: heads of 3, queries [12, 12], keys and values [6, 12], 20 hidden units.
Json decoder(const char* init) {
  Json json = spec::parse_json(R"({
    "tessera": 1, "arch": "decoder", "vocab": 11, "d_model": 12, "head": "linear", "n_layers": 2,
    "embed": {"type": "token", "position": {"type": "learned", "n_positions": 9}},
    "mixer": {"type": "attention", "n_heads": 4, "n_kv_heads": 2}, "layers": [{"repeat": 2}],
    "ffn": {"type": "glu", "d_hidden": 20}})",
                               "test");
  json["init"] = spec::parse_json(init, "test");
  return json;
}

std::map<std::string, spec::ParamDecl> declared(const Json& json) {
  std::map<std::string, spec::ParamDecl> out;
  for (const spec::ParamDecl& decl : parameters(read_model_spec(json))) out[decl.name] = decl;
  return out;
}

/// Deviations of normal draws, in the order table, query, key, value, output, gate, down, logits.
void expect_deviations(const char* init, const std::array<double, 8>& wanted) {
  SCOPED_TRACE(init);
  const auto all = declared(decoder(init));
  const char* names[] = {"embed.token.weight",        "layers.1.mixer.q.weight",
                         "layers.1.mixer.k.weight",   "layers.1.mixer.v.weight",
                         "layers.1.mixer.o.weight",   "layers.1.ffn.gate.weight",
                         "layers.1.ffn.down.weight",  "head.weight"};
  for (size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_EQ(all.at(names[i]).init.kind, Init::Kind::normal) << names[i];
    EXPECT_NEAR(all.at(names[i]).init.a, wanted[i], 1e-9) << names[i];
  }
  // positions are a table as well, norms stay what they are
  EXPECT_EQ(all.at("embed.position.weight").init.a, all.at("embed.token.weight").init.a);
  EXPECT_EQ(all.at("layers.0.mixer_norm.weight").init.kind, Init::Kind::constant);
}

TEST(Initialisation, DrawsByTheFormulasOfThePapers) {
  expect_deviations(R"("residual_scaled")", {.02, .02, .02, .02, .01, .02, .01, .02});
  expect_deviations(R"({"type": "residual_scaled", "std": 0.1})",
                    {.1, .1, .1, .1, .05, .1, .05, .1});
  expect_deviations(R"({"type": "normal", "std": 0.03})",
                    {.03, .03, .03, .03, .03, .03, .03, .03});
  // 1 / sqrt(12), of the last product 1 / sqrt(20)
  expect_deviations(R"("fan_in")", {.02, .288675135, .288675135, .288675135, .288675135,
                                    .288675135, .223606798, .288675135});
  // sqrt(1 / out): 12, 6, 6, 12, 20, 12, 11
  expect_deviations(R"({"type": "fan_in", "fan": "out", "table_std": 0.5})",
                    {.5, .288675135, .408248290, .408248290, .288675135, .223606798, .288675135,
                     .301511345});
  // He, with the mean of both: 2 / 12, 2 / 9, 2 / 9, 2 / 12, 2 / 16, 2 / 16, 2 / 11.5
  expect_deviations(R"({"type": "fan_in", "scale": 2, "fan": "average"})",
                    {.02, .408248290, .471404521, .471404521, .408248290, .353553391, .353553391,
                     .417028828});
  // fan in, queries by sqrt(3) less
  expect_deviations(R"("t5")", {1, .166666667, .288675135, .288675135, .288675135, .288675135,
                                .223606798, 1});
  // sqrt(2 / 60); 2 / (2 sqrt(12))
  expect_deviations(R"("small_init")", {.182574186, .182574186, .182574186, .182574186, .288675135,
                                        .182574186, .288675135, .182574186});
  // m = 4: 1, 1/2 for products, 1/4 for logits
  expect_deviations(R"({"type": "mup", "base_d_model": 3, "std": 0.2})",
                    {.2, .1, .1, .1, .05, .1, .05, .05});
}

TEST(Initialisation, OtherDistributionsHaveTheirVariance) {
  const auto of = [](const char* init) {
    return declared(decoder(init)).at("layers.0.mixer.q.weight").init;
  };
  const Init uniform = of(R"({"type": "fan_in", "scale": 0.3333333333333333, "distribution": "uniform"})");
  EXPECT_EQ(uniform.kind, Init::Kind::uniform);  // torch.nn.Linear: 1 / sqrt(fan in)
  EXPECT_NEAR(uniform.b, 1 / std::sqrt(12.0), 1e-9);
  EXPECT_NEAR(uniform.a, -uniform.b, 1e-12);
  const Init cut = of(R"({"type": "truncated_normal", "std": 0.04, "cut": 1.5})");
  EXPECT_EQ(cut.kind, Init::Kind::truncated_normal);
  EXPECT_EQ(cut.a, 0.04);
  EXPECT_EQ(cut.b, 1.5);
  // jax.nn.initializers.variance_scaling: stddev / .87962566103423978
  const Init scaled = of(R"({"type": "fan_in", "distribution": "truncated_normal"})");
  EXPECT_NEAR(scaled.a, 0.2886751346 / 0.8796256610, 1e-9);
  EXPECT_EQ(scaled.b, 2);
  // what is drawn has it
  Json json = decoder(R"({"type": "fan_in", "distribution": "truncated_normal"})");
  json["d_model"] = 120;
  const auto weights = Weights::initial(read_model_spec(json), 3);
  const Tensor q = weights.find("layers.0.mixer.q.weight")->dense_tensor();
  EXPECT_NEAR(q.std().item<double>(), 1 / std::sqrt(120.0), 0.002);
  EXPECT_LE(q.abs().max().item<double>(), 2 / std::sqrt(120.0) / 0.8796 + 1e-6);
}

TEST(Initialisation, DeepNormIsTheSpecifications) {
  // ffn_moe_norm 4.2
  const auto gains = [](int64_t n) { return nn::DeepNormGains({.n_layers = n}); };
  EXPECT_NEAR(gains(12).alpha, 2.21336384, 1e-8);
  EXPECT_NEAR(gains(12).beta, 0.31947155, 1e-8);
  EXPECT_NEAR(gains(24).alpha, 2.63214803, 1e-8);
  EXPECT_NEAR(gains(24).beta, 0.26864248, 1e-8);
  EXPECT_NEAR(gains(100).alpha, 3.76060309, 1e-8);
  EXPECT_NEAR(gains(100).beta, 0.18803015, 1e-8);
  nn::InitSite pair{.n_layers = 6, .encoder_layers = 6, .decoder_layers = 6, .of_encoder = true};
  EXPECT_NEAR(nn::DeepNormGains(pair).alpha, 1.41793814, 1e-8);
  EXPECT_NEAR(nn::DeepNormGains(pair).beta, 0.49698924, 1e-8);
  pair.of_encoder = false;
  EXPECT_NEAR(nn::DeepNormGains(pair).alpha, 2.05976714, 1e-8);  // 18^(1/4)
  EXPECT_NEAR(nn::DeepNormGains(pair).beta, 0.34329453, 1e-8);

  // two layers: beta 1/2; tables and logits 1 / sqrt(12); Xavier's sqrt(2 / (in + out)) else
  const double beta = 0.5;
  expect_deviations(R"("deep_norm")",
                    {.288675135, .288675135, .333333333, .333333333 * beta, .288675135 * beta,
                     .25 * beta, .25 * beta, .288675135});
  expect_deviations(R"({"type": "deep_norm", "beta": 0.1})",
                    {.288675135, .288675135, .333333333, .0333333333, .0288675135, .025, .025,
                     .288675135});
}

TEST(Initialisation, DeepNormOfAPairKnowsBothStacks) {
  const auto all = declared(spec::parse_json(R"({
    "tessera": 1, "arch": "encoder_decoder", "vocab": 11, "d_model": 8, "init": "deep_norm",
    "mixer": {"type": "attention", "n_heads": 2}, "ffn": {"type": "mlp", "d_hidden": 8},
    "cross": {"type": "cross_attention", "n_heads": 2}, "residual": "post_norm",
    "stacks": {"encoder": {"layers": [{"repeat": 6}]}, "decoder": {"layers": [{"repeat": 6}]}}})",
                                             "test"));
  const double xavier = std::sqrt(2.0 / 16);
  const auto gain = [&](const char* name) { return all.at(name).init.a / xavier; };
  EXPECT_NEAR(gain("encoder.layers.5.mixer.v.weight"), 0.49698924, 1e-8);
  EXPECT_NEAR(gain("encoder.layers.5.mixer.q.weight"), 1, 1e-12);
  EXPECT_NEAR(gain("encoder.layers.0.ffn.up.weight"), 0.49698924, 1e-8);
  EXPECT_NEAR(gain("decoder.layers.0.cross.v.weight"), 0.34329453, 1e-8);
  EXPECT_NEAR(gain("decoder.layers.0.cross.o.weight"), 0.34329453, 1e-8);
  EXPECT_NEAR(gain("decoder.layers.5.ffn.down.weight"), 0.34329453, 1e-8);
}

TEST(Initialisation, RatesOfMupAreThoseOfMatrices) {
  const auto all = declared(decoder(R"({"type": "mup", "base_d_model": 3})"));
  EXPECT_EQ(all.at("embed.token.weight").lr_factor, 1);
  EXPECT_EQ(all.at("layers.0.mixer_norm.weight").lr_factor, 1);
  EXPECT_EQ(all.at("layers.0.mixer.q.weight").lr_factor, 0.25);
  EXPECT_EQ(all.at("layers.0.ffn.down.weight").lr_factor, 0.25);
  EXPECT_EQ(all.at("head.weight").lr_factor, 0.25);
  for (const auto& [name, decl] : declared(decoder(R"("residual_scaled")")))
    EXPECT_EQ(decl.lr_factor, 1) << name;
}

TEST(Initialisation, IsWrittenOutAndCheckedAsOtherParts) {
  Json json = decoder(R"("t5")");
  const Json resolved = resolve(read_model_spec(json));
  EXPECT_EQ(resolved["init"], spec::parse_json(R"({"type": "t5", "factor": 1.0})", "test"));
  EXPECT_EQ(resolve(read_model_spec(resolved)), resolved);
  json.erase("init");
  EXPECT_EQ(resolve(read_model_spec(json))["init"]["type"], "residual_scaled");

  const auto refusal = [](Json spec) {
    return test::error_of([&] { read_model_spec(spec); });
  };
  json["init"] = nullptr;
  EXPECT_THAT(refusal(json), HasSubstr("[init]"));
  json["init"] = "rms_norm";
  EXPECT_THAT(refusal(json), HasSubstr("rms_norm"));
  json["init"] = "mup";
  EXPECT_THAT(refusal(json), HasSubstr("base_d_model"));
  // a tied head has no deviation of its own
  json["init"] = {{"type", "mup"}, {"base_d_model", 3}};
  json["head"] = "tied";
  EXPECT_THAT(refusal(json), HasSubstr("scale = 1 under init mup; expected 0.25"));
  json["head"] = {{"type", "tied"}, {"scale", 0.25}};
  EXPECT_EQ(refusal(json), "");
}

TEST(Initialisation, PredictorsAndExpertsAreDrawnAlike) {
  Json json = decoder(R"({"type": "fan_in", "scale": 4})");
  json["ffn"] = {{"type", "moe"},
                 {"n_experts", 4},
                 {"router", {{"type", "top_k"}, {"k", 2}}},
                 {"expert", {{"type", "glu"}, {"d_hidden", 20}}}};
  json["predictors"] = spec::parse_json(R"([{"layers": [{}]}])", "test");
  const auto all = declared(json);
  EXPECT_NEAR(all.at("layers.0.ffn.experts.down.weight").init.a, 2 / std::sqrt(20.0), 1e-9);
  EXPECT_NEAR(all.at("layers.0.ffn.experts.gate.weight").init.a, 2 / std::sqrt(12.0), 1e-9);
  EXPECT_NEAR(all.at("predictors.0.layers.0.mixer.o.weight").init.a, 2 / std::sqrt(12.0), 1e-9);
}

}  // namespace
}  // namespace tessera::model::init_test
