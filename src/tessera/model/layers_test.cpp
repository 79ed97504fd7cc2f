// Branches that say what they read, stay beside the stream, share and adapt: names and shapes of
// their parameters, what they cost, how they are written out, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/model/model_testing.h"
#include "tessera/model/plan.h"

namespace tessera::model::layers_test {
namespace {

using testing::HasSubstr;

/// Three layers over d_model 8: the block stands before the mixers of the first and the last.
Json tiny() {
  return spec::parse_json(R"({
    "tessera": 1, "arch": "decoder", "vocab": 11, "d_model": 8,
    "layers": [
      {"branches": [
        {"name": "block", "share": "one", "inputs": ["stream", "embedding"], "residual": null,
         "mixer": {"type": "attention", "n_heads": 4}, "adapters": [{"rank": 2, "of": ["q"]}]},
        {"name": "block_ffn", "share": "one", "inputs": ["block"], "residual": null,
         "ffn": {"type": "glu", "d_hidden": 10}, "adapters": [{"rank": 3, "of": ["gate", "up"]}]},
        {"name": "linear", "inputs": ["block_ffn"], "norm": null, "residual": null, "ffn": "linear"},
        {"mixer": {"type": "mamba2", "n_heads": 2}, "add": ["linear"]}]},
      {"mixer": {"type": "mamba2", "n_heads": 2}}],
    "cycles": 2, "n_layers": 3})",
                          "test");
}

Json& branch(Json& json, size_t i) {
  return json["layers"][0]["branches"][i];
}

/// A name of another slot is said to be one, with the branch or the key that takes it.
TEST(Branches, NamesOfOtherSlotsAreSaidToBeThat) {
  const auto error_with = [](const char* key, const char* name) {
    Json json = spec::parse_json(R"({"tessera": 1, "arch": "decoder", "vocab": 11, "d_model": 8,
        "mixer": {"type": "attention", "n_heads": 2}, "ffn": {"type": "glu", "d_hidden": 8},
        "layers": [{}]})",
                                 "test");
    json[key] = name;
    return error_of(json);
  };
  const std::string channel = error_with("ffn", "rwkv_channel_mix");
  EXPECT_THAT(channel,
              HasSubstr("unknown ffn \"rwkv_channel_mix\": it is a mixer; a layer of other "
                        "parts than a mixer and an ffn is a list of branches"));
  EXPECT_THAT(channel, HasSubstr("{\"name\": \"second\", \"mixer\": {\"type\": "
                                 "\"rwkv_channel_mix\"}}"));
  EXPECT_THAT(error_with("mixer", "glu"), HasSubstr("unknown mixer \"glu\": it is an ffn; "));
  EXPECT_THAT(error_with("norm", "glu"),
              HasSubstr("unknown norm \"glu\": it is an ffn; expected it as \"ffn\": {\"type\": "
                        "\"glu\"}, and a norm here"));
  EXPECT_THAT(error_with("head", "rms_norm"), HasSubstr("it is a norm; "));
  // one that no slot has
  EXPECT_THAT(error_with("ffn", "gluu"),
              HasSubstr("unknown ffn \"gluu\" (did you mean \"glu\"?); known"));
}

TEST(Branches, ParametersAreSharedAndAdaptersAreNot) {
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const spec::ParamDecl& decl : parameters(read_model_spec(tiny())))
    EXPECT_TRUE(shapes.emplace(decl.name, decl.shape).second) << decl.name;
  using Shape = std::vector<int64_t>;
  // attention reads 16 channels and has heads of 16 / 4
  EXPECT_EQ(shapes["shared.one.block.q.weight"], (Shape{16, 16}));
  EXPECT_EQ(shapes["shared.one.block.o.weight"], (Shape{8, 16}));
  EXPECT_EQ(shapes["shared.one.block_norm.weight"], (Shape{16}));
  EXPECT_EQ(shapes["shared.one.block_ffn_norm.weight"], (Shape{8}));
  EXPECT_EQ(shapes["shared.one.block_ffn.gate.weight"], (Shape{10, 8}));
  for (const char* layer : {"layers.0.", "layers.2."}) {
    const std::string own = layer;
    EXPECT_EQ(shapes[own + "block.adapters.0.a.weight"], (Shape{2, 16}));
    EXPECT_EQ(shapes[own + "block.adapters.0.b.q.weight"], (Shape{16, 2}));
    EXPECT_EQ(shapes[own + "block_ffn.adapters.0.a.weight"], (Shape{3, 8}));
    EXPECT_EQ(shapes[own + "block_ffn.adapters.0.b.up.weight"], (Shape{10, 3}));
    EXPECT_EQ(shapes[own + "linear.out.weight"], (Shape{8, 8}));
    EXPECT_EQ(shapes[own + "mixer_norm.weight"], (Shape{8}));
  }
  EXPECT_FALSE(shapes.contains("layers.0.linear_norm.weight"));
  EXPECT_FALSE(shapes.contains("layers.0.block.q.weight"));
  EXPECT_FALSE(shapes.contains("layers.1.block.adapters.0.a.weight"));
}

TEST(Branches, EachUseIsComputedAndKeepsItsOwnState) {
  Json mambas = tiny();
  mambas["layers"][0] = mambas["layers"][1];
  const ModelSpec with = read_model_spec(tiny()), without = read_model_spec(mambas);
  // two uses: q, k, v over 16 channels and o, three products of 8 x 10, linear, and the adapters;
  // then 4 * H * D * context of attention
  const double matrices = 3 * 16 * 16 + 16 * 8 + 3 * 80 + 64 + (2 * 16 + 16 * 2) + (3 * 8 + 2 * 30);
  EXPECT_DOUBLE_EQ(make_plan(with, 5).flops_per_token - make_plan(without, 5).flops_per_token,
                   2 * (2 * matrices + 4.0 * 16 * 5));
  EXPECT_EQ(make_plan(with, 5).state_bytes_per_token, 2 * 2 * 16 * 4);
}

TEST(Branches, ResolvedReadsBackEqual) {
  const Json once = resolve(read_model_spec(tiny()));
  EXPECT_EQ(resolve(read_model_spec(once)), once) << once.dump(2);
  const Json& first = once["layers"][0]["branches"];
  EXPECT_EQ(first[0]["inputs"], Json({"stream", "embedding"}));
  EXPECT_EQ(first[0]["residual"], nullptr);
  EXPECT_EQ(first[0]["adapters"][0], Json({{"rank", 2}, {"of", {"q"}}}));
  EXPECT_EQ(first[2]["norm"], nullptr);
  EXPECT_EQ(first[3]["add"], Json::array({"linear"}));
  EXPECT_FALSE(first[3].contains("inputs"));
}

TEST(Branches, WhatCannotWorkIsRefused) {
  const auto with = [](size_t i, const char* key, const char* value) {
    Json json = tiny();
    branch(json, i)[key] = spec::parse_json(value, "test");
    return error_of(json);
  };
  EXPECT_THAT(with(0, "inputs", R"(["stream", "embeding"])"),
              HasSubstr("[layers[0].branches[0].inputs] \"embeding\" is not known here; expected "
                        "\"stream\", \"embedding\" or an earlier branch of the layer"));
  EXPECT_THAT(with(0, "inputs", R"(["linear"])"), HasSubstr("\"linear\" is not known here"));
  EXPECT_THAT(with(0, "inputs", "[]"), HasSubstr("found an empty list"));
  EXPECT_THAT(with(0, "inputs", "[3]"), HasSubstr("found an integer; expected a name"));
  EXPECT_THAT(with(0, "add", R"(["stream"])"), HasSubstr("2 inputs side by side; expected one"));
  EXPECT_THAT(with(0, "name", R"("embedding")"), HasSubstr("names what branches read"));
  EXPECT_THAT(with(3, "inputs", R"(["stream", "linear"])"), HasSubstr("2 inputs side by side"));
  EXPECT_THAT(with(3, "residual", R"("sandwich")"),
              HasSubstr("residual \"sandwich\" lets a branch read the stream alone"));
  EXPECT_THAT(with(3, "add", R"(["block"])"),
              HasSubstr("\"linear\" has residual null, and no later branch of the layer reads it"));
  EXPECT_THAT(with(0, "adapters", R"([{"rank": 2, "of": ["qq"]}])"),
              HasSubstr("\"qq\" is no product of \"attention\""));
  EXPECT_THAT(with(0, "adapters", R"([{"rank": 2, "of": ["q", "o"]}, {"rank": 2, "of": ["o"]}])"),
              HasSubstr("\"o\" has an adapter already"));
  EXPECT_THAT(with(1, "adapters", R"([{"rank": 2, "of": ["gate", "down"]}])"),
              HasSubstr("\"gate\" reads 8 channels, and \"down\" 10"));
  EXPECT_THAT(with(0, "adapters", R"([{"rank": 0, "of": ["q"]}])"), HasSubstr("expected 1 to"));
  EXPECT_THAT(with(0, "adapters", R"([{"rank": 2}])"),
              HasSubstr("[layers[0].branches[0].adapters"));
  EXPECT_THAT(with(0, "share", R"("One")"), HasSubstr("expected lower-case letters"));
}

/// A decoder of one layer with "quantization" next to its layers.
Json quantized(const std::string& ffn, const std::string& layer = "{}") {
  Json json = spec::parse_json(R"({"tessera": 1, "arch": "decoder", "vocab": 11, "d_model": 8,
      "quantization": {}, "mixer": {"type": "attention", "n_heads": 2}})",
                               "test");
  json["ffn"] = spec::parse_json(ffn, "test");
  json["layers"] = Json::array({spec::parse_json(layer, "test")});
  return json;
}

TEST(Quantization, ADefaultIsThatOfEveryBranch) {
  const std::string moe =
      R"({"type": "moe", "n_experts": 3, "expert": {"type": "glu", "d_hidden": 8}})";
  const ModelSpec spec = read_model_spec(quantized(moe));
  const auto& groups = spec.layers[0].groups;
  EXPECT_EQ(quantized_products(spec, 0, groups[0].branches[0]),
            (std::vector<std::string>{"q", "k", "v", "o"}));
  // routers choose in floats
  EXPECT_EQ(quantized_products(spec, 0, groups[1].branches[0]),
            (std::vector<std::string>{"experts.gate", "experts.up", "experts.down"}));
  const Json once = resolve(spec);
  EXPECT_EQ(once["layers"][0]["branches"][1]["quantization"],
            Json({{"weights", "ternary"}, {"activations", "int8"}}));
  EXPECT_EQ(resolve(read_model_spec(once)), once);
}

TEST(Quantization, LayersAndBranchesHaveTheirOwn) {
  const std::string glu = R"({"type": "glu", "d_hidden": 8})";
  ModelSpec spec = read_model_spec(quantized(glu, R"({"quantization": null})"));
  for (const GroupSpec& group : spec.layers[0].groups)
    EXPECT_FALSE(group.branches[0].quantization.has_value());
  spec = read_model_spec(quantized(glu, R"({"quantization": {"of": ["q", "up"]}, "branches": [
      {"mixer": {"type": "attention", "n_heads": 2}},
      {"ffn": {"type": "glu", "d_hidden": 8}},
      {"name": "own", "ffn": {"type": "glu", "d_hidden": 8},
       "quantization": {"weights": "stored", "of": ["down"]}},
      {"name": "none", "ffn": {"type": "mlp", "d_hidden": 8}, "quantization": null}]})"));
  const auto products = [&](size_t i) {
    return quantized_products(spec, 0, spec.layers[0].groups[i].branches[0]);
  };
  EXPECT_EQ(products(0), std::vector<std::string>{"q"});
  EXPECT_EQ(products(1), std::vector<std::string>{"up"});
  EXPECT_EQ(products(2), std::vector<std::string>{"down"});
  EXPECT_FALSE(spec.layers[0].groups[2].branches[0].quantization->ternary);
  EXPECT_TRUE(products(3).empty());
}

TEST(Quantization, NamesThatNoPartHasAreRefused) {
  Json json = quantized(R"({"type": "glu", "d_hidden": 8})");
  json["quantization"] = {{"of", {"q", "up"}}};
  EXPECT_EQ(error_of(json), "");
  json["quantization"] = {{"of", {"q", "qq"}}};
  EXPECT_THAT(error_of(json),
              HasSubstr("[quantization.of] \"qq\" is no product of the parts here"));
  json["quantization"] = nullptr;
  json["layers"][0]["quantization"] = {{"of", {"up", "upp"}}};
  EXPECT_THAT(error_of(json), HasSubstr("[layers[0].quantization.of] \"upp\" is no product"));
}

TEST(Quantization, WhatRoundsNothingIsRefused) {
  const auto with = [](const std::string& quantization) {
    return error_of(
        quantized(R"({"type": "glu", "d_hidden": 8})",
                  R"({"branches": [{"ffn": {"type": "glu", "d_hidden": 8}, "quantization": )" +
                      quantization + "}]}"));
  };
  EXPECT_THAT(
      with(R"({"weights": "stored", "activations": "float"})"),
      HasSubstr("[layers[0].branches[0].quantization] weights as stored and float activations"));
  EXPECT_THAT(with(R"({"weights": "binary"})"),
              HasSubstr("found \"binary\"; expected \"ternary\" or \"stored\""));
  EXPECT_THAT(with(R"({"of": ["q"]})"),
              HasSubstr("\"q\" is no product of \"glu\"; expected gate, up, down"));
  EXPECT_THAT(with("3"), HasSubstr("found an integer"));
  EXPECT_THAT(with(R"({"bits": 2})"), HasSubstr("bits"));
}

// whose norm stands behind the sum with the stream, whatever the branch reads
TEST(Branches, APostNormIsAsWideAsTheStream) {
  Json json = tiny();
  branch(json, 1)["residual"] = "post_norm";
  branch(json, 1)["inputs"] = {"stream", "embedding", "block"};
  branch(json, 2)["inputs"] = {"block"};
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const spec::ParamDecl& decl : parameters(read_model_spec(json)))
    shapes.emplace(decl.name, decl.shape);
  using Shape = std::vector<int64_t>;
  EXPECT_EQ(shapes["shared.one.block_ffn.gate.weight"], (Shape{10, 24}));
  EXPECT_EQ(shapes["shared.one.block_ffn_norm.weight"], (Shape{8}));
  EXPECT_EQ(resolve(read_model_spec(resolve(read_model_spec(json)))),
            resolve(read_model_spec(json)));
}

TEST(Branches, SomePartsReadTheWidthOfTheStreamAlone) {
  Json json = tiny();
  branch(json, 3).erase("add");
  branch(json, 3)["inputs"] = {"stream", "linear"};
  EXPECT_THAT(error_of(json),
              HasSubstr("[layers[0].branches[3].mixer] \"mamba2\" reads 8 channels, and its 2 "
                        "inputs have 16; bring them to that width first"));
}

TEST(Branches, OneIdNamesOneConfig) {
  Json json = tiny();
  json["overrides"] = Json::array();
  json["cycles"] = 1;
  json["n_layers"] = 2;
  Json other = json["layers"][0];
  other["branches"][1]["ffn"]["act"] = "gelu";
  json["layers"][1] = other;
  EXPECT_THAT(error_of(json), HasSubstr("two different branches \"block_ffn\" are shared"));
  // the rank is each use's own
  json["layers"][1] = json["layers"][0];
  json["layers"][1]["branches"][0]["adapters"][0]["rank"] = 5;
  EXPECT_EQ(error_of(json), "");
  json["layers"][1]["share"] = "all";
  EXPECT_THAT(error_of(json), HasSubstr("the whole layer is shared as \"all\""));
}

TEST(Branches, AWholeLayerJoinsTheStream) {
  Json json = tiny();
  json["layers"][0]["residual"] = nullptr;
  EXPECT_THAT(error_of(json), HasSubstr("[layers[0].residual] null for a whole layer"));
}

TEST(Context, IsWhatEveryPartCanTake) {
  Json json = {{"tessera", 1}, {"arch", "decoder"}, {"vocab", 11}, {"d_model", 8}};
  const auto with = [&](const char* layers) {
    json["layers"] = spec::parse_json(layers, "test");
    return read_model_spec(json);
  };
  const ModelSpec one = with(R"([
    {"mixer": {"type": "gmlp", "d_hidden": 6, "max_length": 40}},
    {"mixer": {"type": "hyena", "max_length": 20}},
    {"mixer": {"type": "attention", "n_heads": 2, "position": {"type": "tupe", "n_positions": 30}}}])");
  EXPECT_EQ(one.max_positions(), 20);
  EXPECT_EQ(one.longest_sequence(), 20);
  json["context"] = 15;
  EXPECT_EQ(read_model_spec(json).longest_sequence(), 15);
  EXPECT_EQ(with(R"([{"mixer": {"type": "attention", "n_heads": 2}}])").max_positions(), 0);
  json["arch"] = "encoder";
  EXPECT_EQ(
      with(R"([{"mixer": {"type": "linformer", "n_heads": 2, "n_slots": 3, "max_length": 24}}])")
          .max_positions(),
      24);
  // any length
  EXPECT_EQ(with(R"([{"mixer": "fourier"}])").max_positions(), 0);
}

/// Rwkv7 behind `first`, with `keys` besides.
Json behind(Json first, const char* keys) {
  Json json = {{"tessera", 1}, {"arch", "decoder"}, {"vocab", 11}, {"d_model", 8}};
  Json second = {{"type", "rwkv7"}, {"n_heads", 2}};
  second.update(spec::parse_json(keys, "test"));
  json["layers"] = {{{"mixer", std::move(first)}}, {{"mixer", second}}};
  return json;
}

TEST(ValueResidual, MixesWithTheFirstRwkv7LayerOrIsRefused) {
  const Json rwkv7 = {{"type", "rwkv7"}, {"n_heads", 2}},
             attention = {{"type", "attention"}, {"n_heads", 2}};
  EXPECT_EQ(error_of(behind(rwkv7, "{}")), "");
  EXPECT_EQ(error_of(behind(attention, R"({"value_residual": false})")), "");
  EXPECT_EQ(error_of(behind(attention, R"({"value_residual": true})")),
            "[layers[1].mixer.value_residual] mixes with the values of an earlier rwkv7 layer and "
            "there is none; set \"value_residual\": false here");
  EXPECT_EQ(error_of(behind(rwkv7, R"({"value_dim": 5})")),
            "[layers[1].mixer.value_residual] mixes 2 x 5 channels of values with those of "
            "layers[0].mixer, which are 2 x 4; give both the same n_heads * value_dim, or set "
            "\"value_residual\": false here");
  EXPECT_EQ(error_of(behind(rwkv7, R"({"value_dim": 5, "value_residual": false})")), "");
  EXPECT_EQ(error_of(behind(rwkv7, R"({"n_heads": 4})")), "");
  // the values are those of the first, whatever stands between
  Json json = behind(rwkv7, R"({"value_dim": 5, "value_residual": false})");
  json["layers"].push_back({{"mixer", rwkv7}});
  EXPECT_EQ(error_of(json), "");
  json["layers"].push_back(json["layers"][1]);
  json["layers"][3]["mixer"].erase("value_residual");
  EXPECT_THAT(error_of(json), HasSubstr("[layers[3].mixer.value_residual] mixes 2 x 5"));
}

TEST(ValueResidual, BeginsWithTheFirstOfItsTypeWhereverItStands) {
  Json json = behind({{"type", "attention"}, {"n_heads", 2}}, "{}");
  json["cycles"] = 2;
  EXPECT_EQ(error_of(json), "");
  std::vector<std::string> mixing;
  for (const spec::ParamDecl& decl : parameters(read_model_spec(json)))
    if (decl.name.ends_with("value_mix_down.weight")) mixing.push_back(decl.name);
  EXPECT_EQ(mixing, std::vector<std::string>{"layers.3.mixer.value_mix_down.weight"});
  // as a spec that was saved with all its defaults
  EXPECT_EQ(error_of(resolve(read_model_spec(json))), "");
}

TEST(ValueResidual, CountsTheBranchesOfItsOwnLayer) {
  const Json mix = {{"type", "rwkv7"}, {"n_heads", 2}, {"value_residual", true}};
  Json own = mix;
  own["value_residual"] = false;
  Json json = behind({{"type", "rwkv7"}, {"n_heads", 2}}, "{}");
  json["layers"] = spec::parse_json(R"([{"branches": [{"name": "a"}, {"name": "b"}]}])", "test");
  Json& branches = json["layers"][0]["branches"];
  branches[0]["mixer"] = own;
  branches[1]["mixer"] = mix;
  EXPECT_EQ(error_of(json), "");
  branches[0]["mixer"] = mix;
  branches[1]["mixer"] = own;
  EXPECT_THAT(error_of(json),
              HasSubstr("[layers[0].branches[0].mixer.value_residual] mixes with the values"));
}

/// A decoder of one layer, heads of 16 channels where the mixer has four.
Json around(const Json& mixer) {
  Json json = {{"tessera", 1}, {"arch", "decoder"}, {"vocab", 11}, {"d_model", 64}};
  json["layers"] = Json::array({{{"mixer", mixer}}});
  return json;
}

TEST(Places, AMixerWithoutOneSaysWhyAndWhatHasOne) {
  for (const char* mixer : {"linear_attention", "linformer", "mamba2"}) {
    const std::string error =
        error_of(around({{"type", mixer}, {"n_heads", 4}, {"position", "rope"}}));
    EXPECT_THAT(error,
                HasSubstr(fmt::format("[layers[0].mixer] unknown key \"position\": {} has no "
                                      "rotation and no bias",
                                      mixer)));
    EXPECT_THAT(error, HasSubstr("expected a position of \"embed\" such as \"learned\", or a mixer "
                                 "with a position: attention, "));
  }
  for (const char* mixer : {"multi_level_attention", "local_attention", "mamba2"}) {
    const std::string error =
        error_of(around({{"type", mixer}, {"n_heads", 4}, {"pattern", "window"}}));
    EXPECT_THAT(error, HasSubstr(fmt::format("unknown key \"pattern\": {} has no pattern", mixer)));
    EXPECT_THAT(error, HasSubstr("expected a mixer with a pattern: attention, merged_attention, "
                                 "differential_attention, latent_attention"));
  }
  // any other key stands among those that are valid
  EXPECT_THAT(error_of(around({{"type", "mamba2"}, {"n_heads", 4}, {"positions", "rope"}})),
              HasSubstr("valid keys: "));
}

TEST(Places, ARotationNamesWhatRotates) {
  for (const char* position : {"rope", "p_rope", "xpos", "m_rope"})
    EXPECT_THAT(error_of(around({{"type", "transformer_xl"},
                                 {"n_heads", 4},
                                 {"segment", 4},
                                 {"mem_len", 4},
                                 {"position", position}})),
                HasSubstr("offers a bias of the scores; put it into \"position\" of a mixer that "
                          "rotates queries and keys, such as \"attention\""))
        << position;
}

TEST(MRope, SectionsFollowFromWhatTurns) {
  const auto sections = [](int64_t head_dim, const char* arrangement) {
    const Json position = {{"type", "m_rope"}, {"arrangement", arrangement}};
    const ModelSpec spec = read_model_spec(around(
        {{"type", "attention"}, {"n_heads", 4}, {"head_dim", head_dim}, {"position", position}}));
    return resolve(spec)["layers"][0]["branches"][0]["mixer"]["position"]["sections"].dump();
  };
  EXPECT_EQ(sections(128, "chunked"), "[16,24,24]");      // Qwen2-VL
  EXPECT_EQ(sections(128, "interleaved"), "[24,20,20]");  // Qwen3-VL
  EXPECT_EQ(sections(6, "chunked"), "[1,1,1]");
  EXPECT_EQ(sections(2, "interleaved"), "[1,0,0]");
  for (int64_t head_dim = 2; head_dim <= 96; head_dim += 2)
    for (const char* arrangement : {"chunked", "interleaved"})
      EXPECT_NO_THROW(sections(head_dim, arrangement)) << head_dim << arrangement;
}

}  // namespace
}  // namespace tessera::model::layers_test
