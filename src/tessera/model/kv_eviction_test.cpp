#include "tessera/model/kv_eviction.h"

#include <gtest/gtest.h>

#include "tessera/base/testing.h"
#include "tessera/model/plan.h"

namespace tessera::model::kv_eviction_test {
namespace {

ModelSpec zoo(const std::string& name) {
  return load_model_spec(std::string(TESSERA_SOURCE_DIR) + "/zoo/" + name + ".json");
}

int64_t state_bytes(const ModelSpec& spec, int64_t context) {
  return make_plan(spec, context).state_bytes;
}

TEST(KeptTokens, StatesStopGrowingAndParametersStay) {
  for (const char* name :
       {"llama/smollm2-135m", "hybrid/bamba-9b", "gemma2/gemma2-2b", "deepseek/deepseek-v2-lite"}) {
    SCOPED_TRACE(name);
    const ModelSpec spec = zoo(name);
    const ModelSpec bounded = read_model_spec(with_kv_eviction(spec, 4, 100));
    EXPECT_EQ(state_bytes(bounded, 5000), state_bytes(bounded, 50'000));
    EXPECT_LT(state_bytes(spec, 5000), state_bytes(spec, 50'000));
    const auto params = parameters(spec), left = parameters(bounded);
    ASSERT_EQ(params.size(), left.size());
    for (size_t i = 0; i < params.size(); ++i) EXPECT_EQ(params[i].name, left[i].name);
  }
  // 104 tokens of 30 layers, 3 heads of 64, keys and values
  EXPECT_EQ(state_bytes(read_model_spec(with_kv_eviction(zoo("llama/smollm2-135m"), 4, 100)), 9000),
            int64_t{104} * 30 * 3 * 64 * 2 * 4);
  // without first ones: a window
  EXPECT_EQ(state_bytes(read_model_spec(with_kv_eviction(zoo("llama/smollm2-135m"), 0, 100)), 9000),
            int64_t{100} * 30 * 3 * 64 * 2 * 4);
}

TEST(KeptTokens, IsRefusedWhereAMechanismKeepsAllOrNothingGrows) {
  const auto refused = [](const char* name, const char* part) {
    SCOPED_TRACE(name);
    test::expect_error(ErrorKind::usage, part, [&] { with_kv_eviction(zoo(name), 4, 100); });
  };
  refused("native_sparse_attention/tiny-native_sparse_attention",
          "its mechanism supports no pattern");
  refused("mamba2/mamba2-130m", "keeps a bounded state already");
  refused("hybrid/mamba2-attention", "keeps a bounded state already");
  refused("reformer/reformer-crime-and-punishment", "keeps no keys and values");
  refused("bert/bert-base-uncased", "only a decoder's text grows");
  test::expect_error(ErrorKind::usage, "expected 0 and 1 at least",
                     [&] { with_kv_eviction(zoo("llama/smollm2-135m"), 4, 0); });
}

TEST(KeptTokens, HeavyOnesTakeTheRoomThatIsSaid) {
  for (const char* name : {"llama/smollm2-135m", "hybrid/bamba-9b", "gemma2/gemma2-2b"}) {
    SCOPED_TRACE(name);
    const ModelSpec spec = zoo(name), bounded = read_model_spec(with_kv_eviction(spec, 4, 36, 28));
    EXPECT_EQ(state_bytes(bounded, 5000), state_bytes(bounded, 50'000));
    EXPECT_EQ(parameters(spec).size(), parameters(bounded).size());
  }
  // 28 heavy ones, the last 36 and 64 more until some are let go, of 30 layers, 3 heads of 64, keys
  // and values; and a sum for each of them
  EXPECT_EQ(
      state_bytes(read_model_spec(with_kv_eviction(zoo("llama/smollm2-135m"), 4, 36, 28)), 9000),
      int64_t{128} * 30 * 3 * (64 * 2 + 1) * 4);
}

TEST(KeptTokens, HeavyOnesAreRefusedWhereNoKeysHaveWeights) {
  const auto refused = [](const char* name, const char* part) {
    SCOPED_TRACE(name);
    test::expect_error(ErrorKind::usage, part, [&] { with_kv_eviction(zoo(name), 4, 100, 50); });
  };
  refused("deepseek/deepseek-v2-lite", "only mixer \"attention\" evicts keys");
  refused("native_sparse_attention/tiny-native_sparse_attention",
          "evicts keys by their attention weight");
  refused("mamba2/mamba2-130m", "keeps a bounded state already");
  test::expect_error(ErrorKind::usage, "expected 0 and 1 at least",
                     [&] { with_kv_eviction(zoo("llama/smollm2-135m"), 4, 0, 50); });
  test::expect_error(ErrorKind::spec, "counts the keys between",
                     [&] { read_model_spec(with_kv_eviction(zoo("alibi/tiny-alibi"), 4, 9, 5)); });
}

}  // namespace
}  // namespace tessera::model::kv_eviction_test
