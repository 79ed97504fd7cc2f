// Pooling of key/value heads against numbers written out, and on the golden models: which tensors
// change, and into what.
#include "tessera/convert/kv_heads.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tessera/base/error.h"
#include "tessera/base/testing.h"
#include "tessera/convert/tensor_ops.h"

namespace tessera::convert::kv_heads_test {
namespace {

namespace fs = std::filesystem;

std::vector<double> values_of(const TensorView& tensor) {
  std::vector<double> values(tensor.data.size() / sizeof(double));
  std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
  return values;
}

TensorView doubles(Shape shape, std::vector<double> values) {
  return from_doubles("t", DType::f64, shape, values);
}

/// `heads` blocks of two rows of three numbers that no power of two divides.
TensorView keys(int64_t heads) {
  std::vector<double> values(static_cast<size_t>(heads * 6));
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(0.7 * static_cast<double>(i));
  return doubles({heads * 2, 3}, values);
}

TEST(PooledHeads, MeanAndFirstByHand) {
  // heads of one row: 1 2 | 3 6 | 10 20 | 30 60
  const TensorView t = doubles({4, 2}, {1, 2, 3, 6, 10, 20, 30, 60});
  EXPECT_EQ(values_of(pooled_heads(t, 4, 2, PoolHeads::mean)), (std::vector<double>{2, 4, 20, 40}));
  EXPECT_EQ(values_of(pooled_heads(t, 4, 2, PoolHeads::first)),
            (std::vector<double>{1, 2, 10, 20}));
  EXPECT_EQ(values_of(pooled_heads(t, 4, 1, PoolHeads::mean)), (std::vector<double>{11, 22}));
  // heads of two rows
  EXPECT_EQ(values_of(pooled_heads(t, 2, 1, PoolHeads::mean)),
            (std::vector<double>{5.5, 11, 16.5, 33}));
  // a bias
  EXPECT_EQ(values_of(pooled_heads(doubles({4}, {1, 2, 5, 10}), 2, 1, PoolHeads::mean)),
            (std::vector<double>{3, 6}));
}

TEST(PooledHeads, AsManyHeadsAreTheTensorItself) {
  const TensorView t = keys(6);
  for (const PoolHeads pool : {PoolHeads::mean, PoolHeads::first})
    EXPECT_EQ(pooled_heads(t, 6, 6, pool).data.data(), t.data.data());
}

TEST(PooledHeads, InTwoStepsAsInOne) {
  const TensorView t = keys(12);
  for (const auto& [first, then] :
       {std::pair<int64_t, int64_t>{6, 3}, {6, 2}, {4, 2}, {3, 1}, {2, 1}, {6, 1}}) {
    for (const PoolHeads pool : {PoolHeads::mean, PoolHeads::first}) {
      const auto direct = values_of(pooled_heads(t, 12, then, pool));
      const auto steps =
          values_of(pooled_heads(pooled_heads(t, 12, first, pool), first, then, pool));
      ASSERT_EQ(direct.size(), steps.size());
      for (size_t i = 0; i < direct.size(); ++i) EXPECT_NEAR(direct[i], steps[i], 1e-15);
    }
  }
}

TEST(PooledHeads, EqualHeadsOfAGroupStay) {
  const TensorView groups = keys(2);
  const std::vector<TensorView> g = split(groups, 0, std::array<int64_t, 2>{2, 2});
  const TensorView t = joined(std::array{g[0], g[0], g[0], g[1], g[1], g[1]}, 0);
  for (const PoolHeads pool : {PoolHeads::mean, PoolHeads::first})
    EXPECT_TRUE(equal_values(pooled_heads(t, 6, 2, pool), groups));
}

TEST(PooledHeads, StorageTypeStays) {
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    const TensorView t = from_doubles("t", type, {2}, std::array{1.0, 2.0});
    const TensorView mean = pooled_heads(t, 2, 1, PoolHeads::mean);
    EXPECT_EQ(mean.dtype, type);
    EXPECT_TRUE(equal_values(mean, doubles({1}, {1.5})));
  }
}

TEST(PooledHeads, RefusesBrokenGroups) {
  for (const auto& [heads, groups] : {std::pair<int64_t, int64_t>{4, 3}, {4, 0}, {5, 1}, {4, 8}})
    EXPECT_THROW(
        pooled_heads(doubles({4, 2}, std::vector<double>(8)), heads, groups, PoolHeads::mean),
        Error);
}

Checkpoint golden(const std::string& name) {
  static const test::TemporaryFolder scratch;
  const fs::path source = fs::path(TESSERA_SOURCE_DIR) / "tests/golden/families" / name;
  const fs::path folder = scratch.path() / name;
  if (!fs::exists(folder)) {
    fs::create_directories(folder);
    fs::copy_file(source / "config.json", folder / "config.json");
    fs::path weights = source / "model.safetensors";
    if (!fs::exists(weights)) weights = source.parent_path() / "base" / "model.safetensors";
    fs::create_symlink(weights, folder / "model.safetensors");
  }
  return load_checkpoint(folder);
}

/// Which tensors are not those of the source.
std::vector<std::string> changed(const Checkpoint& from, const Checkpoint& to) {
  std::vector<std::string> names;
  for (const TensorView& tensor : to.tensors)
    if (tensor.data.data() != from.tensor(tensor.name).data.data()) names.push_back(tensor.name);
  return names;
}

TEST(KvHeads, KeysAndValuesChangeAndNothingElse) {
  const Checkpoint from = golden("qwen2/base");  // has biases
  const Checkpoint to = with_kv_heads(from, {.kv_heads = 1});
  std::vector<std::string> wanted;
  for (size_t i = 0; i < from.spec.layers.size(); ++i)
    for (const char* part : {"k.weight", "k.bias", "v.weight", "v.bias"}) {
      wanted.push_back(fmt::format("layers.{}.mixer.{}", i, part));
      const TensorView& old = from.tensor(wanted.back());
      const auto half = old.shape[0] / 2;
      EXPECT_TRUE(equal_values(to.tensor(wanted.back()),
                               mean_of(split(old, 0, std::array<int64_t, 2>{half, half}))));
    }
  EXPECT_EQ(changed(from, to), wanted);
  EXPECT_EQ(to.spec_json["layers"][0]["branches"][0]["mixer"]["n_kv_heads"], 1);
  EXPECT_EQ(to.tensors.size(), model::parameters(to.spec).size());
}

TEST(KvHeads, AsManyAsThereAreChangeNothing) {
  for (const char* name : {"llama/base", "qwen2/base", "falcon_h1/base", "t5/base"}) {
    const Checkpoint from = golden(name);
    int64_t present = 0;
    const Json flat = from.spec_json.flatten();
    for (const auto& [path, value] : flat.items())
      if (path.ends_with("/n_kv_heads")) present = value;
    for (const PoolHeads pool : {PoolHeads::mean, PoolHeads::first, PoolHeads::random}) {
      const Checkpoint to = with_kv_heads(from, {.kv_heads = present, .pool = pool});
      EXPECT_EQ(to.spec_json, from.spec_json) << name;
      EXPECT_TRUE(changed(from, to).empty()) << name;
    }
  }
}

TEST(KvHeads, NormsOfKeys) {
  // one weight for all heads stays; weights of every head are averaged
  const Checkpoint shared = golden("qwen3/base");
  const auto names = changed(shared, with_kv_heads(shared, {.kv_heads = 1}));
  EXPECT_EQ(std::count(names.begin(), names.end(), "layers.0.mixer.k_norm.weight"), 0);
  const Checkpoint whole = golden("olmo2/base");
  const TensorView& old = whole.tensor("layers.0.mixer.k_norm.weight");
  const Checkpoint pooled = with_kv_heads(whole, {.kv_heads = 1});
  const std::vector<int64_t> sizes(2, old.shape[0] / 2);
  EXPECT_TRUE(
      equal_values(pooled.tensor("layers.0.mixer.k_norm.weight"), mean_of(split(old, 0, sizes))));
}

TEST(KvHeads, NormsOfTheirOwnForEveryHead) {
  Checkpoint from;
  from.spec = model::read_model_spec(Json::parse(R"({"tessera": 1, "arch": "decoder", "vocab": 8,
      "d_model": 8, "layers": [{"mixer": {"type": "attention", "n_heads": 4, "head_dim": 2,
      "qk_norm": "rms_norm", "qk_norm_over": "each_head"}, "ffn": null}], "head": "tied"})"));
  from.spec_json = model::resolve(from.spec);
  for (const spec::ParamDecl& decl : model::parameters(from.spec)) {
    std::vector<double> values(static_cast<size_t>(decl.elements()));
    for (double& value : values) value = static_cast<double>(from.tensors.size());
    from.tensors.push_back(from_doubles(decl.name, DType::f64, decl.shape, values));
  }
  const std::string norm = "layers.0.mixer.k_norm.";
  const auto old = [&](int head) { return from.tensor(fmt::format("{}{}.weight", norm, head)); };
  const Checkpoint mean = with_kv_heads(from, {.kv_heads = 2});
  EXPECT_TRUE(equal_values(mean.tensor(norm + "0.weight"), mean_of(std::array{old(0), old(1)})));
  EXPECT_TRUE(equal_values(mean.tensor(norm + "1.weight"), mean_of(std::array{old(2), old(3)})));
  EXPECT_THROW(mean.tensor(norm + "2.weight"), Error);
  const Checkpoint first = with_kv_heads(from, {.kv_heads = 2, .pool = PoolHeads::first});
  EXPECT_TRUE(equal_values(first.tensor(norm + "1.weight"), old(2)));
  const Checkpoint same = with_kv_heads(from, {.kv_heads = 4});
  EXPECT_TRUE(changed(from, same).empty());
}

TEST(KvHeads, BothKindsOfAttentionOfAPair) {
  const Checkpoint from = golden("bart/base");
  const Checkpoint to = with_kv_heads(from, {.kv_heads = 1});
  for (const char* name : {"encoder.layers.0.mixer.k.weight", "decoder.layers.1.mixer.v.bias",
                           "decoder.layers.0.cross.k.weight"})
    EXPECT_LT(to.tensor(name).shape[0], from.tensor(name).shape[0]) << name;
}

TEST(KvHeads, DrawnAnew) {
  const Checkpoint from = golden("qwen2/base");
  const auto keys_of = [&](uint64_t seed) {
    return with_kv_heads(from, {.kv_heads = 1, .pool = PoolHeads::random, .seed = seed})
        .tensor("layers.0.mixer.k.weight");
  };
  EXPECT_TRUE(equal_values(keys_of(1), keys_of(1)));
  EXPECT_FALSE(equal_values(keys_of(1), keys_of(2)));
  // of deviation 0.02, not that of the goldens
  const TensorView drawn = keys_of(1);
  double squares = 0;
  for (size_t i = 0; i < drawn.data.size(); i += sizeof(float)) {
    float value;
    std::memcpy(&value, drawn.data.data() + i, sizeof value);
    squares += static_cast<double>(value) * value;
  }
  const auto n = static_cast<double>(drawn.data.size() / sizeof(float));
  EXPECT_NEAR(std::sqrt(squares / n), 0.02, 0.004);
}

TEST(KvHeads, RefusesWhatItCannotPool) {
  test::expect_error(ErrorKind::usage, "found 3; expected a divisor of the 2 key/value heads",
                     [] { with_kv_heads(golden("llama/base"), {.kv_heads = 3}); });
  test::expect_error(ErrorKind::usage, "found 4; expected a divisor of the 2 key/value heads",
                     [] { with_kv_heads(golden("llama/base"), {.kv_heads = 4}); });
  test::expect_error(ErrorKind::usage, "found mamba2; expected attention",
                     [] { with_kv_heads(golden("mamba2/base"), {.kv_heads = 1}); });
  test::expect_error(ErrorKind::usage, "is differential_attention; expected attention",
                     [] { with_kv_heads(golden("diffllama/base"), {.kv_heads = 1}); });
}

}  // namespace
}  // namespace tessera::convert::kv_heads_test
