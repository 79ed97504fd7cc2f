// Parameter counts against the formulas and public totals of the families' documentation.
#include "tessera/model/plan.h"

#include <gtest/gtest.h>

#include "tessera/base/testing.h"
#include "tessera/model/kv_quantization.h"

namespace tessera::model::plan_test {
namespace {

ModelSpec zoo(const std::string& name) {
  return load_model_spec(std::string(TESSERA_SOURCE_DIR) + "/zoo/" + name + ".json");
}

TEST(Plan, ParametersOfPublicModels) {
  const std::pair<const char*, int64_t> expected[] = {
      {"llama/smollm2-135m", 134'515'008},
      {"llama/llama2-7b", 6'738'415'616},
      {"llama/llama3.1-8b", 8'030'261'248},
      {"llama/llama3.1-405b", 405'853'388'800},
      {"gpt2/gpt2", 124'439'808},
      {"gpt_neox/pythia-160m", 162'322'944},
      {"mistral/mistral-7b-v0.1", 7'241'732'096},
      {"qwen2/qwen2.5-0.5b", 494'032'768},
      {"qwen3/qwen3-0.6b", 596'049'920},
      {"phi3/phi3-mini-4k", 3'821'079'552},
      {"olmo2/olmo2-7b", 7'298'617'344},
      {"olmo3/olmo3-7b", 7'298'011'136},
      {"olmo/olmo-1b", 1'176'764'416},
      {"olmo/olmo-7b", 6'888'095'744},
      {"gemma/gemma-2b", 2'506'172'416},
      {"gemma/gemma-7b", 8'537'680'896},
      {"nemotron/nemotron4-15b", 15'628'775'424},
      {"nemotron/nemotron4-340b", 341'029'195'776},
      {"xielu/apertus-8b", 8'053'338'176},
      {"gemma2/gemma2-2b", 2'614'341'888},
      {"gemma3/gemma3-1b", 999'885'952},
      {"mamba2/mamba2-130m", 128'989'632},
      {"zamba/zamba-7b-v1", 7'232'490'496},
      {"zamba/zamba2-2.7b", 2'662'214'560},
      {"t5/switch-base-8", 619'339'008},
      {"reformer/reformer-crime-and-punishment",
       2'747'904},  // without an unused bias of the logits
      {"vit/vit-base-patch16-224", 86'567'656},
      {"whisper/whisper-tiny", 37'184'640},  // without the encoder's table of sines and cosines
      {"attention_experts/jetmoe-8b", 8'522'237'952},
      {"deberta/deberta-v2-xlarge", 884'593'152},
      {"electra/electra-small", 13'483'008},
      {"albert/albert-base-v2",
       11'683'584 - (768 * 768 + 768)},  // the public figure counts a pooler
      {"distilbert/distilbert-base-uncased", 66'362'880},
      {"modernbert/modernbert-base", 149'014'272},
      {"t5/mt5-small", 300'176'768},
      {"bert/bert-base-uncased",
       109'482'240 - (768 * 768 + 768)},  // the public figure counts a pooler
  };
  for (const auto& [name, parameters] : expected)
    EXPECT_EQ(make_plan(zoo(name), 1).parameters, parameters) << name;
}

// Dosovitskiy et al. 2020, arXiv:2010.11929: 14 x 14 patches and the class token; Radford et al.
// 2022, arXiv:2212.04356: 30 s of sound in 1,500 positions.
TEST(Plan, TokensOfImagesAndSound) {
  EXPECT_EQ(feature_tokens(zoo("vit/vit-base-patch16-224")), 197);
  EXPECT_EQ(feature_tokens(zoo("whisper/whisper-tiny-encoder")), 1500);
  EXPECT_EQ(feature_tokens(zoo("llama/smollm2-135m")), 0);
}

TEST(Plan, ParametersOfPublicMixturesOfExperts) {
  // specification, families 3.3; the active ones count every parameter that a token uses
  struct Expected {
    const char* name;
    int64_t parameters, active;
  };
  for (const auto& [name, parameters, active] :
       {Expected{"mixtral/mixtral-8x7b", 46'702'792'704, 12'879'925'248},
        Expected{"qwen3/qwen3-30b-a3b", 30'532'122'624, 3'353'032'704},
        Expected{"qwen2/qwen1.5-moe-a2.7b", 14'315'784'192, 2'689'173'504},
        Expected{"deepseek/deepseek-v2-lite", 15'706'484'224, 2'661'150'208},
        Expected{"llama4/llama4-scout", 107'769'861'120, 17'172'894'720},
        Expected{"hybrid/jamba-v0.1", 51'570'323'328, 12'110'311'296},
        // 28 of 32 experts of 3 * 2880^2 + 3 * 2880 numbers idle in each of 24 layers
        Expected{"gpt_oss/gpt-oss-20b", 20'914'757'184,
                 20'914'757'184 - int64_t{24 * 28} * 24'891'840},
        // totals of the published files; what idles is experts
        Expected{"hybrid/qwen3-next-80b-a3b", 79'674'391'296,
                 79'674'391'296 - int64_t{48} * 502 * 3 * 2048 * 512},
        Expected{"hybrid/nemotron-3-nano-30b-a3b", 31'577'937'344 + 23 * 128,
                 31'577'937'344 + 23 * 128 - int64_t{23} * 122 * 2 * 2688 * 1856},
        Expected{"lightning_attention/minimax-text-01", 456'089'655'296,
                 456'089'655'296 - int64_t{80} * 30 * 3 * 6144 * 9216},
        // published totals: 6.92e9 and 1.28e9
        Expected{"moe/olmoe-1b-7b", 6'919'161'856, 1'282'017'280},
        Expected{"deepseek/deepseek-v3", 671'026'419'200, 37'552'297'472},
        // its module: 11,610,068,224, of which 248 of 256 experts of 44,040,192 rest
        Expected{"deepseek/deepseek-v3-mtp", 671'026'419'200 + 11'610'068'224,
                 37'552'297'472 + 11'610'068'224 - int64_t{248} * 44'040'192}}) {
    const Plan plan = make_plan(zoo(name), 1);
    EXPECT_EQ(plan.parameters, parameters) << name;
    EXPECT_EQ(plan.active_parameters, active) << name;
  }
}

ModelSpec read(const std::string& json) {
  return read_model_spec(spec::parse_json(json, "test"));
}

TEST(Plan, ParametersOfRecurrentModels) {
  // specification, mixers 6.4, 7.2, 10.4: computed there from the models' formulas
  const auto parameters_of = [](const std::string& json) {
    return make_plan(read(json), 1).parameters;
  };
  Json bamba = spec::parse_json(R"({"tessera": 1, "arch": "decoder", "vocab": 128256,
    "d_model": 4096, "norm": {"type": "rms_norm", "eps": 1e-5}, "layers": [],
    "ffn": {"type": "glu", "d_hidden": 14336}, "head": "linear"})",
                                "test");
  for (int64_t i = 0; i < 32; ++i)
    bamba["layers"].push_back(
        {{"mixer", i == 9 || i == 18 || i == 27
                       ? Json{{"type", "attention"}, {"n_heads", 32}, {"n_kv_heads", 8}}
                       : Json{{"type", "mamba2"}, {"n_heads", 128}, {"d_state", 128}}}});
  EXPECT_EQ(parameters_of(bamba.dump()), 9'780'235'392) << "Bamba-9B";
  EXPECT_EQ(parameters_of(R"({"tessera": 1, "arch": "decoder", "vocab": 50277, "d_model": 768,
    "embed": {"type": "token", "norm": "layer_norm"}, "norm": "layer_norm",
    "layers": [{"repeat": 12, "branches": [{"mixer": "rwkv4"},
      {"name": "channel_mix", "mixer": {"type": "rwkv_channel_mix", "version": "rwkv4", "d_hidden": 3072}}]}],
    "head": "linear"})"),
            169'342'464)
      << "RWKV-4 169M";
  EXPECT_EQ(parameters_of(R"({"tessera": 1, "arch": "decoder", "vocab": 50304, "d_model": 4096,
    "norm": {"type": "rms_norm", "eps": 1e-6},
    "layers": [{"repeat": 32, "mixer": {"type": "mlstm", "n_heads": 8}}],
    "ffn": {"type": "glu", "d_hidden": 10944}, "head": {"type": "linear", "softcap": 30}})"),
            6'865'424'896)
      << "xLSTM 7B";
  // the model of the xlstm package 2.0.6 with these sizes
  EXPECT_EQ(make_plan(zoo("mlstm/xlstm-7-1"), 1).parameters, 830'384);
  // additions 1.3
  EXPECT_EQ(make_plan(zoo("hybrid/griffin-2b"), 1).parameters, 2'682'862'080);
  const ModelSpec griffin_9b = load_model_spec(
      std::string(TESSERA_SOURCE_DIR) + "/zoo/hybrid/griffin-2b.json",
      {"d_model=4096", "embed.scale=64", "n_layers=38", "cycles=13", "layers[0].mixer.n_heads=16",
       "layers[1].mixer.n_heads=16", "ffn.d_hidden=12288"});
  EXPECT_EQ(make_plan(griffin_9b, 1).parameters, 8'579'977'216);
}

// specification, mixers 8.3: the presets without their embeddings
TEST(Plan, ParametersOfTheRetNetPresets) {
  struct Preset {
    int64_t layers, d, d_v, heads, parameters;
  };
  for (const Preset& p : {Preset{6, 512, 864, 2, 19'077'632},
                          {16, 1024, 1728, 4, 203'457'536},
                          {24, 2048, 3456, 8, 1'220'642'816},
                          {32, 2560, 4280, 10, 2'523'302'400},
                          {32, 4096, 6912, 16, 6'509'826'048},
                          {40, 5120, 8560, 20, 12'616'094'720}}) {
    const Json json = {
        {"tessera", 1},
        {"arch", "decoder"},
        {"vocab", 8},
        {"d_model", p.d},
        {"norm", {{"type", "rms_norm"}, {"eps", 1e-6}}},
        {"layers",
         Json::array(
             {{{"repeat", p.layers},
               {"mixer",
                {{"type", "retention"}, {"n_heads", p.heads}, {"value_dim", p.d_v / p.heads}}}}})},
        {"ffn", {{"type", "glu"}, {"d_hidden", p.d_v}}},
        {"head", "tied"}};
    EXPECT_EQ(make_plan(read_model_spec(json), 1).parameters - 8 * p.d, p.parameters) << p.d;
  }
}

// specification, mixers 14: elements that one layer keeps of one sequence, however long it is
TEST(Plan, StatesOfRecurrentLayers) {
  struct Case {
    const char* what;
    int64_t d_model, elements;
    const char* branches;
  };
  for (
      const Case& c : {
          Case{"S4", 512, 2 * 16'384, R"([{"mixer": "s4"}])"},
          {"S4D", 512, 2 * 16'384, R"([{"mixer": "s4d"}])"},
          {"Mamba 2.8B", 2560, 97'280, R"([{"mixer": {"type": "mamba", "d_state": 16}}])"},
          {"Mamba-2 2.7B", 2560, 655'360 + 16'128,
           R"([{"mixer": {"type": "mamba2", "n_heads": 80, "d_state": 128}}])"},
          {"RWKV-4 14B", 5120, 25'600,
           R"([{"mixer": "rwkv4"}, {"name": "channel_mix", "mixer": {"type": "rwkv_channel_mix", "version": "rwkv4"}}])"},
          {"RWKV-5", 4096, 270'336,
           R"([{"mixer": {"type": "rwkv5", "n_heads": 64}},
                {"name": "channel_mix", "mixer": {"type": "rwkv_channel_mix", "version": "rwkv5"}}])"},
          {"RWKV-6", 4096, 270'336,
           R"([{"mixer": {"type": "rwkv6", "n_heads": 64}},
                {"name": "channel_mix", "mixer": {"type": "rwkv_channel_mix", "version": "rwkv6"}}])"},
          {"RWKV-7", 4096, 270'336,
           R"([{"mixer": {"type": "rwkv7", "n_heads": 64}},
                {"name": "channel_mix", "mixer": {"type": "rwkv_channel_mix", "version": "rwkv7"}}])"},
          {"RetNet 7b", 4096, 1'769'472,
           R"([{"mixer": {"type": "retention", "n_heads": 16, "value_dim": 432}}])"},
          {"xLSTM 7B", 4096, 1'050'632, R"([{"mixer": {"type": "mlstm", "n_heads": 8}}])"},
      }) {
    const ModelSpec spec =
        read(fmt::format(R"({{"tessera": 1, "arch": "decoder", "vocab": 8, "d_model": {},
                           "norm": "layer_norm", "layers": [{{"branches": {}}}], "head": "tied"}})",
                         c.d_model, c.branches));
    for (const int64_t context : {1, 100'000}) {
      const Plan plan = make_plan(spec, context);
      EXPECT_EQ(plan.state_bytes, 4 * c.elements) << c.what << " after " << context;
      EXPECT_EQ(plan.state_bytes_per_token, 0) << c.what;
    }
  }
}

TEST(Plan, StateAndFlops) {
  const Plan plan = make_plan(zoo("llama/smollm2-135m"), 2048);
  // 30 layers x 3 kv heads x 64 x (k and v) x 4 bytes
  EXPECT_EQ(plan.state_bytes_per_token, 30 * 3 * 64 * 2 * 4);
  EXPECT_EQ(plan.state_bytes, 2048 * plan.state_bytes_per_token);
  // two per matrix parameter (tied head included), plus 4 * H * D * context a layer
  EXPECT_DOUBLE_EQ(plan.flops_per_token, 2.0 * plan.matrix_parameters + 30.0 * 4 * 576 * 2048);
}

TEST(Plan, KeysAndValuesOfFewerBits) {
  using spec::KvType;
  const auto per_token = [](const char* name, KvType type) {
    return make_plan(zoo(name), 2048, -1, type).state_bytes_per_token;
  };
  const char* llama = "llama/smollm2-135m";
  EXPECT_EQ(per_token(llama, KvType::bf16), 30 * 3 * 64 * 2 * 2);
  // a byte each, and a scale of four for every head
  EXPECT_EQ(per_token(llama, KvType::int8), 30 * 3 * (64 + 4) * 2);
  EXPECT_EQ(per_token(llama, KvType::fp8), per_token(llama, KvType::int8));
  // half a byte each, and two halves for every 32
  EXPECT_EQ(per_token(llama, KvType::int4), 30 * 3 * (64 / 32) * 20 * 2);
  // 128k tokens of a decoder of 1.24 G parameters: 16 layers, 8 heads of 64
  const ModelSpec long_text = read_model_spec(spec::parse_json(R"({
    "tessera": 1, "arch": "decoder", "vocab": 128256, "d_model": 2048,
    "mixer": {"type": "attention", "n_heads": 32, "n_kv_heads": 8, "position": "rope"},
    "layers": [{"repeat": 16}], "ffn": {"type": "glu", "d_hidden": 8192}, "head": "tied"})",
                                                               "test"));
  constexpr int64_t kTokens = int64_t{1} << 17, kHeads = int64_t{16} * 8 * 2;
  const std::pair<KvType, int64_t> bytes_of_a_head[] = {
      {KvType::f32, 256}, {KvType::f16, 128}, {KvType::int8, 68}, {KvType::int4, 40}};
  for (const auto& [type, bytes] : bytes_of_a_head)
    EXPECT_EQ(make_plan(long_text, kTokens, -1, type).state_bytes, kTokens * kHeads * bytes);
  // where nothing would be rounded it is refused
  const auto refused = [](const char* name, ErrorKind kind, const char* part) {
    test::expect_error(kind, part, [&] { make_plan(zoo(name), 100, -1, KvType::int8); });
  };
  const char* nsa = "native_sparse_attention/tiny-native_sparse_attention";
  refused("mamba2/mamba2-130m", ErrorKind::spec,
          "int8, but no layer of this model keeps keys and values that may be rounded; expected");
  refused(nsa, ErrorKind::spec, "all bits are needed in layers.0.mixer (native_sparse_attention)");
  refused("reformer/reformer-crime-and-punishment", ErrorKind::usage,
          "keeps no keys and values: lsh_attention");
}

// the layers that can take fewer bits take them
TEST(Plan, FewerBitsInSomeLayers) {
  using spec::KvType;
  const ModelSpec spec = read_model_spec(spec::parse_json(
      R"({"tessera": 1, "arch": "decoder", "vocab": 9, "d_model": 8, "ffn": null, "layers": [
          {"mixer": {"type": "attention", "n_heads": 2}},
          {"mixer": {"type": "memorizing", "n_heads": 2, "segment": 4, "mem_len": 4,
                     "memory": 8, "top_k": 2}},
          {"mixer": {"type": "mamba2", "n_heads": 2}}]})",
      "test"));
  EXPECT_EQ(kept_in_full(spec), std::vector<std::string>{"layers.1.mixer (memorizing)"});
  const auto plain = state_layout(spec), packed = state_layout(spec, KvType::int8);
  ASSERT_EQ(plain.size(), 3u);
  const auto bytes = [](const BranchState& branch) { return spec::state_bytes(branch.tensors, 7); };
  EXPECT_EQ(bytes(packed[0]), 7 * 2 * 2 * (4 + 4));
  for (const size_t same : {1, 2}) EXPECT_EQ(bytes(packed[same]), bytes(plain[same]));
}

TEST(Plan, SnapshotsOfAPrefixCache) {
  const auto snapshots = [](const char* name, int64_t context, int64_t every) {
    const ModelSpec spec = zoo(name);
    Plan plan = make_plan(spec, context);
    add_snapshots(plan, spec, every);
    return std::pair{plan.snapshots, plan.snapshot_bytes};
  };
  // keys and values are kept once, with the last hidden state
  EXPECT_EQ(snapshots("llama/smollm2-135m", 1000, 256),
            (std::pair<int64_t, int64_t>{1, 1000 * 30 * 3 * 64 * 2 * 4 + 576 * 4}));
  // 24 heads of 64 x 128 and 3 tokens of 1792 channels before the convolution, in 24 layers
  const int64_t one = (24 * 64 * 128 + 3 * 1792) * 24 * 4 + 768 * 4;
  EXPECT_EQ(snapshots("mamba2/mamba2-130m", 1000, 256), (std::pair<int64_t, int64_t>{4, 4 * one}));
  EXPECT_EQ(snapshots("mamba2/mamba2-130m", 1024, 256), (std::pair<int64_t, int64_t>{4, 4 * one}));
}

TEST(ModelSpec, ResolvedReadsBackEqual) {
  for (const char* name : {"llama/smollm2-135m", "gpt2/gpt2"}) {
    const Json once = resolve(zoo(name));
    EXPECT_EQ(resolve(read_model_spec(once)), once) << once.dump(2);
  }
}

std::string error_with(const std::string& assignment) {
  return test::error_of([&] {
    load_model_spec(std::string(TESSERA_SOURCE_DIR) + "/zoo/llama/smollm2-135m.json", {assignment});
  });
}

TEST(ModelSpec, ErrorsNamePathAndRemedy) {
  EXPECT_EQ(error_with("layers[0].mixer.n_heads=7"),
            "[layers[0].mixer] n_heads = 7 does not divide d_model = 576; give head_dim, or "
            "another n_heads");
  EXPECT_NE(error_with("layers[0].mixer.n_head=9").find("did you mean \"n_heads\"?"),
            std::string::npos);
  EXPECT_NE(error_with("layers[0].mixer.type=atention").find("did you mean \"attention\"?"),
            std::string::npos);
  EXPECT_NE(error_with("norm.eps=tiny")
                .find("[layers[0].norm.eps] found a string \"tiny\"; expected a number"),
            std::string::npos);
  EXPECT_NE(error_with(R"(layers[0].mixer.position={"type":"learned","n_positions":4})")
                .find("put it into \"embed\""),
            std::string::npos);
  EXPECT_NE(error_with("vocab=0").find("[vocab] found 0; expected 1"), std::string::npos);
}

TEST(ModelSpec, OverridesCyclesSharing) {
  Json json = spec::parse_json(
      R"({"tessera":1,"arch":"decoder","vocab":16,"d_model":8,"ffn":{"type":"glu","d_hidden":16},
    "layers":[{"mixer":{"type":"attention","n_heads":2}},{"share":"s","mixer":{"type":"mamba2","n_heads":2}}],
    "cycles":3,"n_layers":5,"overrides":[{"at":[0,-1],"ffn":{"d_hidden":24}}]})",
      "test");
  const ModelSpec spec = read_model_spec(json);
  ASSERT_EQ(spec.layers.size(), 5u);
  std::vector<std::string> names;
  for (const auto& decl : parameters(spec)) names.push_back(decl.name);
  EXPECT_EQ(std::count(names.begin(), names.end(), "shared.s.mixer.in.weight"), 1);
  EXPECT_EQ(std::count(names.begin(), names.end(), "layers.4.mixer.q.weight"), 1);
  EXPECT_EQ(std::count(names.begin(), names.end(), "layers.1.mixer.in.weight"), 0);
}

TEST(Plan, WhatCannotContinueHoldsNoState) {
  for (const char* name : {"bert/bert-base-uncased", "lsh_attention/tiny-lsh_attention"}) {
    const Plan plan = make_plan(zoo(name), 100);
    EXPECT_EQ(plan.state_bytes_per_token + plan.state_bytes_fixed + plan.state_bytes, 0) << name;
  }
  // convolutional positions hold the embeddings that their taps reach
  const auto decoder = [](const char* position) {
    return read_model_spec(
        spec::parse_json(fmt::format(R"({{"tessera": 1, "arch": "decoder", "vocab": 9, "d_model": 8,
            "embed": {{"type": "token", "position": {}}}, "layers": [{{"mixer": {{"type": "attention", "n_heads": 2}}}}]}})",
                                     position),
                         "test"));
  };
  const char* wide = R"({"type": "convolutional", "kernel": 5, "groups": 2})";
  for (const int64_t tokens : {3, 100})
    EXPECT_EQ(
        make_plan(decoder(wide), tokens).state_bytes,
        make_plan(decoder("\"none\""), tokens).state_bytes + 4 * 8 * std::min<int64_t>(4, tokens));
}

}  // namespace
}  // namespace tessera::model::plan_test
