// Keys of configs that a family does not claim: those that ask for nothing, those that nobody
// knows, and those that are mathematics elsewhere. Expected: what transformers 5.24 and llama.cpp
// do with such files, which is to compute as if the key were not there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/mapped_file.h"
#include "tessera/base/testing.h"
#include "tessera/convert/checkpoint.h"
#include "tessera/convert/foreign_config.h"
#include "tessera/format/gguf.h"

namespace tessera::convert::config_keys_test {
namespace {

namespace fs = std::filesystem;
using test::TemporaryFolder;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

fs::path golden(const std::string& family) {
  return fs::path(TESSERA_SOURCE_DIR) / "tests/golden/families" / family;
}

/// The base case of a family with other values of some keys.
class Folder {
 public:
  explicit Folder(const std::string& family = "llama") {
    const fs::path base = golden(family) / "base";
    config_ = spec::read_json_file(base / "config.json");
    fs::create_symlink(base / "model.safetensors", folder_ / "model.safetensors");
  }
  Checkpoint load(const Json& keys, const LoadOptions& options = {}) const {
    Json config = config_;
    for (const auto& [key, value] : keys.items()) config[key] = value;
    folder_.write("config.json", config.dump());
    return load_checkpoint(folder_.path(), options);
  }
  std::string error(const Json& keys, const LoadOptions& options = {}) const {
    return test::error_of([&] { load(keys, options); });
  }

 private:
  TemporaryFolder folder_;
  Json config_;
};

TEST(ConfigKeys, AValueThatSwitchesOffIsReadOver) {
  const Folder folder;
  const Json plain = folder.load({}).spec_json;
  const std::pair<const char*, Json> cases[] = {
      {"neftune_noise_alpha", nullptr},
      {"quantization_config", nullptr},
      {"sliding_window", nullptr},
      {"sliding_window", 0},
      {"use_sliding_window", false},
      {"text_config", nullptr},
      {"layer_types", nullptr},
      {"mlp_ratio", nullptr},
      {"is_decoder", false},
      {"use_qk_norm", false},
      {"qk_norm", false},
      {"num_experts", 0},
      {"num_local_experts", 0},
      {"num_nextn_predict_layers", 0},
      {"first_k_dense_replace", 0},
      {"no_rope_layers", Json::array()},
      {"final_logit_softcapping", nullptr},
      {"attn_logit_softcapping", 0.0},
      {"logit_scale", 1},
      {"logits_scaling", 1.0},
      {"embedding_multiplier", 1.0},
      {"residual_multiplier", 1.0},
      {"clip_qkv", nullptr},
      {"rope_local_base_freq", nullptr},
      {"attn_config", Json::object()},
  };
  for (const auto& [key, value] : cases) {
    const Checkpoint checkpoint = folder.load({{key, value}});
    EXPECT_EQ(checkpoint.spec_json, plain) << key;
    EXPECT_THAT(checkpoint.remarks, IsEmpty()) << key;
  }
}

TEST(ConfigKeys, WhatOtherFamiliesComputeIsRefused) {
  const Folder folder;
  for (const auto& [key, value] : std::vector<std::pair<std::string, Json>>{
           {"logit_scale", 0.5},
           {"use_qk_norm", true},
           {"final_logit_softcapping", 30.0},
           {"num_local_experts", 8},
           {"layer_types", {"sliding_attention", "full_attention"}},
           // absence means true to some that know it
           {"scale_attn_weights", false}}) {
    const std::string error = folder.error({{key, value}});
    EXPECT_THAT(error, HasSubstr("key \"" + key + "\" = ")) << error;
    EXPECT_THAT(error, HasSubstr("--ignore-key " + key)) << error;
    LoadOptions options;
    options.keys.ignore = {key};
    const Checkpoint checkpoint = folder.load({{key, value}}, options);
    EXPECT_EQ(checkpoint.spec_json, folder.load({}).spec_json) << key;
    EXPECT_FALSE(checkpoint.foreign_config.contains(key)) << "would go out again";
  }
}

TEST(ConfigKeys, WhatNoFamilyKnowsIsCountedInOneLine) {
  const Folder folder;
  EXPECT_THAT(folder
                  .load({{"unsloth_version", "2025.9.7"},
                         {"transformers.js_config", {{"kv_cache_dtype", {{"q4", "float16"}}}}}})
                  .remarks,
              IsEmpty());
  const Json strange = {{"frobnicate", 3},
                        {"rms_norm_esp", 1e-3},
                        {"house", {{"rooms", {{"north", 1}, {"south", 2}}}}}};
  const Checkpoint checkpoint = folder.load(strange);
  EXPECT_EQ(checkpoint.spec_json, folder.load({}).spec_json);
  ASSERT_THAT(checkpoint.remarks, SizeIs(1));
  for (const char* part :
       {"config.json: 3 keys are known to no family and ignored: \"frobnicate\", "
        "\"rms_norm_esp\"",
        "\"house\" (", "did they mean \"rms_norm_eps\"?", "--strict refuses them"})
    EXPECT_THAT(checkpoint.remarks[0], HasSubstr(part));
  LoadOptions strict;
  strict.keys.strict = true;
  EXPECT_THAT(folder.error(strange, strict), HasSubstr("3 keys are known to no family"));
  EXPECT_EQ(folder.error({{"use_qk_norm", false}, {"neftune_noise_alpha", nullptr}}, strict), "");
  LoadOptions ignore;
  ignore.keys.ignore = {"frob*", "house.rooms.*", "rms_norm_esp"};
  EXPECT_THAT(folder.load(strange, ignore).remarks, IsEmpty());
}

TEST(ConfigKeys, ZeroWindowsAreNone) {
  const Folder folder("mistral");
  EXPECT_EQ(folder.load({{"sliding_window", 0}}).spec_json,
            folder.load({{"sliding_window", nullptr}}).spec_json);
  EXPECT_NE(folder.load({{"sliding_window", 8}}).spec_json,
            folder.load({{"sliding_window", nullptr}}).spec_json);
}

TEST(ConfigKeys, NullIsFalseWhereOneValueIsExpected) {
  const Folder folder("qwen3_next");
  EXPECT_EQ(folder.load({{"use_sliding_window", nullptr}}).spec_json, folder.load({}).spec_json);
  EXPECT_THAT(folder.error({{"use_sliding_window", true}}), HasSubstr("use_sliding_window"));
}

// --- GGUF ---------------------------------------------------------------------------------------

/// The base case of llama as a GGUF file with further metadata.
class GgufBase {
 public:
  Checkpoint load(const std::vector<format::GgufEntry>& entries) const {
    const format::GgufFile base = format::open_gguf(golden("llama") / "gguf/base.gguf");
    std::vector<format::GgufEntry> all;
    for (const format::GgufEntry& entry : base.metadata.entries())
      if (std::none_of(entries.begin(), entries.end(),
                       [&](const auto& other) { return other.key == entry.key; }))
        all.push_back(entry);
    all.insert(all.end(), entries.begin(), entries.end());
    format::write_gguf(folder_ / "model.gguf", all, base.tensors.tensors());
    return load_checkpoint(folder_ / "model.gguf");
  }
  std::string error(const std::vector<format::GgufEntry>& entries) const {
    return test::error_of([&] { load(entries); });
  }

 private:
  TemporaryFolder folder_;
};

template <class T>
format::GgufEntry entry(const std::string& key, T value) {
  return {"llama." + key, format::GgufValue::number(value)};
}

format::GgufEntry list(const std::string& key, std::vector<uint32_t> values) {
  return {"llama." + key, format::GgufValue::array(std::span<const uint32_t>(values))};
}

TEST(ConfigKeys, GgufKeysThatSwitchOffAreReadOver) {
  const GgufBase base;
  const Json plain = base.load({}).spec_json;
  for (const format::GgufEntry& one :
       {entry<uint32_t>("nextn_predict_layers", 0), entry<uint32_t>("leading_dense_block_count", 0),
        entry<uint32_t>("attention.sliding_window", 0), entry<float>("logit_scale", 1),
        entry<float>("embedding_scale", 1), entry<float>("residual_scale", 1),
        entry<uint32_t>("expert_shared_count", 0), entry<float>("final_logit_softcapping", 0),
        entry<float>("rope.scaling.yarn_attn_factor", 1.2F),
        entry<float>("rope.scaling.yarn_ext_factor", 1)}) {
    const Checkpoint checkpoint = base.load({one});
    EXPECT_EQ(checkpoint.spec_json, plain) << one.key;
    EXPECT_THAT(checkpoint.remarks, IsEmpty()) << one.key;
  }
  EXPECT_THAT(base.error({entry<float>("logit_scale", 0.5)}),
              HasSubstr("--ignore-key logit_scale"));
  EXPECT_THAT(base.load({entry<uint32_t>("frobnicate", 3)}).remarks, SizeIs(1));
}

TEST(ConfigKeys, GgufNumbersOfEveryLayerThatAreAlike) {
  const GgufBase base;
  EXPECT_EQ(
      base.load({list("attention.head_count", {4, 4}), list("attention.head_count_kv", {2, 2}),
                 list("feed_forward_length", {16, 16})})
          .spec_json,
      base.load({}).spec_json);
  EXPECT_THAT(base.error({list("attention.head_count_kv", {2, 4})}),
              HasSubstr("attention.head_count_kv"));
}

}  // namespace
}  // namespace tessera::convert::config_keys_test
