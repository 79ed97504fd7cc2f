// Specs of two stacks: what they inherit, what they are called, what they cost, what is refused.
#include "tessera/model/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "tessera/model/model_testing.h"

namespace tessera::model::stacks_test {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::Not;

Json tiny() {
  return spec::parse_json(R"({
    "tessera": 1, "arch": "encoder_decoder", "vocab": 11, "d_model": 8, "start": 3,
    "mixer": {"type": "attention", "n_heads": 2}, "ffn": {"type": "mlp", "d_hidden": 12},
    "cross": {"type": "cross_attention", "n_heads": 2},
    "stacks": {"encoder": {"layers": [{"repeat": 3}]},
               "decoder": {"layers": [{"repeat": 2}], "embed": {"type": "token", "scale": 2}}}})",
                          "test");
}

std::vector<std::string> names(const Json& json) {
  std::vector<std::string> names;
  for (const spec::ParamDecl& decl : parameters(read_model_spec(json))) names.push_back(decl.name);
  return names;
}

TEST(Stacks, TakeFromTheSpecAroundThemWhatTheyLeaveOut) {
  const ModelSpec spec = read_model_spec(tiny());
  ASSERT_NE(spec.encoder, nullptr);
  EXPECT_EQ(spec.encoder->layers.size(), 3u);
  EXPECT_EQ(spec.layers.size(), 2u);
  EXPECT_EQ(spec.start, 3);
  EXPECT_TRUE(spec.causal());
  EXPECT_FALSE(spec.encoder->causal());
  // an encoder has nothing to cross to
  EXPECT_EQ(spec.encoder->layers[0].groups.size(), 2u);
  EXPECT_EQ(spec.layers[0].groups.size(), 3u);
  EXPECT_EQ(spec.layers[0].groups[1].branches[0].name, "cross");
  const Json resolved = resolve(spec);
  EXPECT_EQ(resolved["stacks"]["encoder"]["embed"]["scale"], 1.0);
  EXPECT_EQ(resolved["stacks"]["decoder"]["embed"]["scale"], 2.0);
  EXPECT_EQ(resolve(read_model_spec(resolved)), resolved);
}

TEST(Stacks, NameTheirParametersAndShareTheTokens) {
  const auto shared = names(tiny());
  for (const char* name : {"embed.token.weight", "encoder.layers.2.mixer.q.weight",
                           "encoder.final_norm.weight", "decoder.layers.1.cross.k.weight",
                           "decoder.layers.1.cross_norm.weight", "decoder.final_norm.weight"})
    EXPECT_THAT(shared, Contains(name));
  EXPECT_THAT(shared, Not(Contains("encoder.layers.0.cross.k.weight")));
  EXPECT_EQ(std::count(shared.begin(), shared.end(), "embed.token.weight"), 1);
  Json own = tiny();
  own["tokens"] = "own";
  EXPECT_THAT(names(own), Contains("encoder.embed.token.weight"));
  EXPECT_THAT(names(own), Contains("decoder.embed.token.weight"));
  EXPECT_THAT(names(own), Not(Contains("embed.token.weight")));
}

TEST(Stacks, HaveAVocabularyEach) {
  Json json = tiny();
  json["tokens"] = "own";
  json["stacks"]["encoder"]["vocab"] = 7;
  const ModelSpec spec = read_model_spec(json);
  EXPECT_EQ(spec.vocab, 11);
  EXPECT_EQ(spec.encoder->vocab, 7);
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const spec::ParamDecl& decl : parameters(spec)) shapes[decl.name] = decl.shape;
  EXPECT_EQ(shapes["encoder.embed.token.weight"], (std::vector<int64_t>{7, 8}));
  EXPECT_EQ(shapes["decoder.embed.token.weight"], (std::vector<int64_t>{11, 8}));
  EXPECT_EQ(resolve(spec)["stacks"]["encoder"]["vocab"], 7);
  EXPECT_EQ(resolve(read_model_spec(resolve(spec))), resolve(spec));
  json["tokens"] = "shared";
  EXPECT_THAT(error_of(json), HasSubstr("[stacks.encoder.vocab] found 7"));
  json["stacks"]["encoder"]["vocab"] = 11;
  EXPECT_FALSE(resolve(read_model_spec(json))["stacks"]["encoder"].contains("vocab"));
}

TEST(Stacks, AreRefusedWithTheReason) {
  Json json = tiny();
  json["stacks"]["decoder"]["cross"] = nullptr;
  EXPECT_THAT(error_of(json), HasSubstr("[stacks.decoder] no layer reads the encoder"));
  json = tiny();
  json["stacks"].erase("encoder");
  EXPECT_THAT(error_of(json), HasSubstr("[stacks.encoder] missing"));
  json = tiny();
  json["layers"] = Json::array({Json::object()});
  EXPECT_THAT(error_of(json), HasSubstr("[layers] has no meaning next to \"stacks\""));
  json = tiny();
  json["stacks"]["encoder"]["cross"] = json["cross"];
  EXPECT_THAT(error_of(json), HasSubstr("cross_attention stands where no encoder is"));
  json = tiny();
  json["stacks"]["decoder"]["layer"] = Json::array();
  EXPECT_THAT(error_of(json), HasSubstr("did you mean \"layers\"?"));
  json = tiny();
  json["tokens"] = "both";
  EXPECT_THAT(error_of(json), HasSubstr("expected \"shared\" or \"own\""));
  json = tiny();
  json["start"] = 11;
  EXPECT_THAT(error_of(json), HasSubstr("[start] found 11; expected 0 to 10"));
  // a call may choose no token of a row, and its source would be lost
  json = tiny();
  json["stacks"]["decoder"]["depth"] = {{"type", "mixture_of_depths"}, {"capacity", 0.5}};
  EXPECT_THAT(error_of(json), HasSubstr("keeps a row's source from its first call"));
  json["stacks"]["decoder"]["layers"] =
      spec::parse_json(R"([{"cross": null}, {"depth": null}])", "test");
  EXPECT_EQ(error_of(json), "");
  json = tiny();
  json["arch"] = "decoder";
  EXPECT_THAT(error_of(json), HasSubstr("[stacks] arch is \"decoder\""));
  json.erase("stacks");
  json.erase("start");
  json["layers"] = Json::array({Json::object()});
  EXPECT_THAT(error_of(json), HasSubstr("cross_attention stands where no encoder is"));
}

TEST(Stacks, MessagesNameTheStack) {
  Json json = tiny();
  json["stacks"]["decoder"]["layers"][0]["mixer"] = {{"type", "attention"}, {"n_heads", 3}};
  EXPECT_THAT(error_of(json), HasSubstr("[stacks.decoder.layers[0].mixer]"));
  json = tiny();
  json["stacks"]["encoder"]["overrides"] =
      spec::parse_json(R"([{"at": [5], "ffn": {"d_hidden": 4}}])", "test");
  EXPECT_THAT(error_of(json), HasSubstr("[stacks.encoder.overrides[0].at] layer 5"));
}

TEST(Stacks, PlanCountsBoth) {
  const auto zoo = [](const char* name) {
    return load_model_spec(std::string(TESSERA_SOURCE_DIR) + "/zoo/" + name + ".json");
  };
  EXPECT_EQ(make_plan(zoo("t5/t5-small"), 1).parameters, 60'506'624);
  // the public figure has no bias of the logits, which files hold as zeros
  EXPECT_EQ(make_plan(zoo("bart/bart-base"), 1).parameters, 139'420'416 + 50'265);
  const Plan plan = make_plan(read_model_spec(tiny()), 5, 7);
  // two decoder layers: keys and values of 8 channels per token, and per token of the source
  EXPECT_EQ(plan.state_bytes_per_token, 2 * 2 * 8 * 4);
  EXPECT_EQ(plan.state_bytes_fixed, 7 * 2 * 2 * 8 * 4);
  EXPECT_EQ(plan.state_bytes, 5 * plan.state_bytes_per_token + plan.state_bytes_fixed);
  // matrices of 3 and 2 layers and the head; 4 D flops per key met, each query and each source
  // token
  const double matrices = 3 * (4 * 64 + 2 * 96) + 2 * (8 * 64 + 2 * 96) + 88;
  EXPECT_DOUBLE_EQ(plan.flops_per_token, 2 * matrices + 3 * 32.0 * 7 + 2 * 32.0 * 5 + 2 * 32.0 * 5);
}

}  // namespace
}  // namespace tessera::model::stacks_test
