// Parameters, states and operations that a plan counts; tests/zoo_test.cpp holds the parameters of
// released models.
#include "tessera/model/plan.h"

#include <gtest/gtest.h>

#include "tessera/base/testing.h"
#include "tessera/model/kv_quantization.h"

namespace tessera::model::plan_test {
namespace {

ModelSpec zoo(const std::string& name) {
  return load_model_spec(std::string(TESSERA_SOURCE_DIR) + "/zoo/" + name + ".json");
}

// Dosovitskiy et al. 2020, arXiv:2010.11929: 14 x 14 patches and the class token; Radford et al.
// 2022, arXiv:2212.04356: 30 s of sound in 1,500 positions.
TEST(Plan, TokensOfImagesAndSound) {
  EXPECT_EQ(feature_tokens(zoo("vit/vit-base-patch16-224")), 197);
  EXPECT_EQ(feature_tokens(zoo("whisper/whisper-tiny-encoder")), 1500);
  EXPECT_EQ(feature_tokens(zoo("llama/smollm2-135m")), 0);
}

ModelSpec read(const std::string& json) {
  return read_model_spec(spec::parse_json(json, "test"));
}

TEST(Plan, ParametersOfRecurrentModels) {
  // the model of the xlstm package 2.0.6 with these sizes
  EXPECT_EQ(make_plan(zoo("mlstm/xlstm-7-1"), 1).parameters, 830'384);
  // additions 1.3
  const ModelSpec griffin_9b = load_model_spec(
      std::string(TESSERA_SOURCE_DIR) + "/zoo/hybrid/griffin-2b.json",
      {"d_model=4096", "embed.scale=64", "n_layers=38", "cycles=13", "layers[0].mixer.n_heads=16",
       "layers[1].mixer.n_heads=16", "ffn.d_hidden=12288"});
  EXPECT_EQ(make_plan(griffin_9b, 1).parameters, 8'579'977'216);
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
