// Native sparse attention against its definition, and the cases in which it is full attention.
#include "tessera/nn/mixer/attention/native_sparse_attention.h"

#include <algorithm>

#include "tessera/nn/mixer/mixer_testing.h"

namespace tessera::nn::native_sparse_attention_test {
namespace {

using ops::gen;

TEST(NativeSparseAttention, SelectsByImportanceTiesToTheEarlier) {
  const MixerUnderTest m(
      R"({"type": "native_sparse_attention", "n_heads": 1, "block": 4, "stride": 2,
      "select_block": 4, "n_selected": 4, "n_initial": 1, "n_local": 2, "window": 4})",
      4);
  const auto& config = m.part.as<NativeSparseAttentionConfig>();
  EXPECT_EQ(config.visible_blocks(2), 0);
  EXPECT_EQ(config.visible_blocks(3), 1);
  EXPECT_EQ(config.visible_blocks(5), 2);
  // position 23: six blocks of 4; 0, 4 and 5 are forced, one more of 1, 2, 3
  const auto with = [&](size_t compressed) {
    std::vector<double> weights(static_cast<size_t>(config.visible_blocks(23)), 0.0);
    weights[compressed] = 1;
    return config.selected(23, weights);
  };
  using Blocks = std::vector<int64_t>;
  EXPECT_EQ(with(2), (Blocks{0, 1, 4, 5}));  // tokens 4 .. 7
  EXPECT_EQ(with(3), (Blocks{0, 1, 4, 5}));  // tokens 6 .. 9: blocks 1 and 2 alike
  EXPECT_EQ(with(4), (Blocks{0, 2, 4, 5}));
  EXPECT_EQ(with(6), (Blocks{0, 3, 4, 5}));
  EXPECT_EQ(with(0), (Blocks{0, 1, 4, 5}));  // no weight anywhere else
  EXPECT_EQ(config.selected(15, {}), (Blocks{0, 1, 2, 3}));
}

Tensor attend(const Tensor& q,
              const Tensor& keys,
              const Tensor& values,
              Tensor* weights = nullptr) {
  const Tensor p = at::softmax(at::mv(keys, q) / std::sqrt(static_cast<double>(q.numel())), 0);
  if (weights != nullptr) *weights = p;
  return at::mv(values.t(), p);
}

// Query by query in double.
TEST(NativeSparseAttention, AgainstTheDefinition) {
  constexpr int64_t kT = 37, kD = 8, kHeads = 4, kGroups = 2, kE = 2, kBlock = 4, kStride = 2,
                    kSelect = 4, kWindow = 5;
  const Tensor x = gen({kT, kD}, 1.3, 0.2);
  for (const bool mlp : {false, true}) {
    MixerUnderTest m(fmt::format(R"({{"type": "native_sparse_attention", "n_heads": 4,
        "n_kv_heads": 2, "block": 4, "stride": 2, "select_block": 4, "n_selected": 4,
        "n_initial": 1, "n_local": 2, "window": 5, "pool": "{}"}})",
                                 mlp ? "mlp" : "mean"),
                     kD);
    m.fill({.size = 1});
    const auto heads = [&](const char* name, int64_t n) {
      return at::matmul(x, m.values[name].t()).reshape({kT, n, kE});
    };
    const Tensor q = heads("q.weight", kHeads), k = heads("k.weight", kGroups),
                 v = heads("v.weight", kGroups), kw = heads("k_window.weight", kGroups),
                 vw = heads("v_window.weight", kGroups);
    const Tensor gates =
        at::sigmoid(at::matmul(x, m.values["gate.weight"].t()) + m.values["gate.bias"])
            .reshape({kT, kHeads, 3});
    const auto pool = [&](const Tensor& rows, const std::string& of) {
      if (!mlp) return rows.mean(0);
      const Tensor flat = (rows + m.values[of + ".place"]).reshape({kBlock * kE});
      const Tensor hidden =
          at::gelu(at::mv(m.values[of + ".up.weight"], flat) + m.values[of + ".up.bias"]);
      return at::mv(m.values[of + ".down.weight"], hidden);
    };
    Tensor mixed = at::zeros({kT, kHeads, kE}, at::kDouble);
    int64_t skipped = 0;
    for (int64_t i = 0; i < kT; ++i)
      for (int64_t g = 0; g < kGroups; ++g) {
        const Tensor kg = k.select(1, g), vg = v.select(1, g);
        std::vector<Tensor> block_keys, block_values;
        for (int64_t b = 0; b * kStride + kBlock <= i + 1; ++b) {
          block_keys.push_back(pool(kg.narrow(0, b * kStride, kBlock), "compress_k"));
          block_values.push_back(pool(vg.narrow(0, b * kStride, kBlock), "compress_v"));
        }
        const int64_t blocks = i / kSelect + 1;
        std::vector<double> importance(static_cast<size_t>(blocks), 0.0);
        for (int64_t h = 2 * g; h < 2 * g + 2; ++h) {
          if (block_keys.empty()) continue;
          Tensor weights;
          const Tensor o =
              attend(q[i][h], at::stack(block_keys), at::stack(block_values), &weights);
          mixed[i][h] += gates[i][h][0] * o;
          for (int64_t b = 0; b < weights.size(0); ++b)
            for (int64_t token = b * kStride; token < b * kStride + kBlock; token += kStride)
              importance[static_cast<size_t>(token / kSelect)] += weights[b].item<double>();
        }
        std::vector<bool> chosen(static_cast<size_t>(blocks), blocks <= 4);
        if (blocks > 4) {
          chosen[0] = chosen[static_cast<size_t>(blocks - 1)] =
              chosen[static_cast<size_t>(blocks - 2)] = true;
          int64_t best = 1;
          for (int64_t b = 1; b < blocks - 2; ++b)
            if (importance[static_cast<size_t>(b)] > importance[static_cast<size_t>(best)])
              best = b;
          chosen[static_cast<size_t>(best)] = true;
          ++skipped;
        }
        std::vector<int64_t> tokens, recent;
        for (int64_t j = 0; j <= i; ++j) {
          if (chosen[static_cast<size_t>(j / kSelect)]) tokens.push_back(j);
          if (j > i - kWindow) recent.push_back(j);
        }
        const Tensor at_tokens = at::tensor(tokens, at::kLong),
                     at_recent = at::tensor(recent, at::kLong);
        for (int64_t h = 2 * g; h < 2 * g + 2; ++h) {
          mixed[i][h] += gates[i][h][1] * attend(q[i][h], kg.index_select(0, at_tokens),
                                                 vg.index_select(0, at_tokens));
          mixed[i][h] +=
              gates[i][h][2] * attend(q[i][h], kw.select(1, g).index_select(0, at_recent),
                                      vw.select(1, g).index_select(0, at_recent));
        }
      }
    EXPECT_GT(skipped, 20);
    const Tensor want = at::matmul(mixed.reshape({kT, 8}), m.values["o.weight"].t());
    ops::expect_both([&](at::ScalarType type) { return m.run(x, type); }, want, 1e-12);
    ops::expect_both(
        [&](at::ScalarType type) {
          return m.run(x, type, {1, 10, 3, 1, 22});
        },
        want, 1e-12);
  }
}

TEST(NativeSparseAttention, SharedKeysAndValuesAreThoseOfAWindowWithTheSameMatrices) {
  const char* with = R"({{"type": "native_sparse_attention", "n_heads": 4, "n_kv_heads": 2,
      "block": 2, "stride": 2, "select_block": 2, "n_selected": 3, "window": 3, "pool": "mean",
      "position": "rope", "gate_bias": false, "shared_kv": {},
      "bias": {{"q": true, "k": true, "v": true, "o": true}}}})";
  MixerUnderTest own(fmt::format(fmt::runtime(with), false), 8),
      shared(fmt::format(fmt::runtime(with), true), 8);
  own.fill();
  for (const char* name : {"k.weight", "k.bias", "v.weight", "v.bias"}) {
    const std::string of_window = std::string(name).insert(1, "_window");
    own.values[of_window] = own.values[name];
  }
  shared.values = own.values;
  for (const char* name : {"k_window.weight", "k_window.bias", "v_window.weight", "v_window.bias"})
    shared.values.erase(name);
  const Tensor x = gen({23, 8}, 1.1, 0.3), want = own.run(x, at::kDouble);
  ops::expect_both([&](at::ScalarType type) { return shared.run(x, type); }, want, 1e-13);
  ops::expect_both(
      [&](at::ScalarType type) {
        return shared.run(x, type, {9, 1, 1, 12});
      },
      want, 1e-12);
}

TEST(NativeSparseAttention, EnoughBlocksAreFullAttention) {
  // the other two gates closed, the selected one open: q, k, v are those of plain attention
  MixerUnderTest m(R"({"type": "native_sparse_attention", "n_heads": 2, "block": 2, "stride": 2,
      "select_block": 2, "n_selected": 6, "n_initial": 1, "n_local": 1, "window": 2,
      "pool": "mean", "position": "rope"})",
                   8),
      full(R"({"type": "attention", "n_heads": 2, "position": "rope"})", 8);
  m.fill();
  full.values = m.values;
  m.values["gate.weight"].zero_();
  m.values["gate.bias"] = ops::tensor({-1e9, 1e9, -1e9, -1e9, 1e9, -1e9});
  const Tensor x = gen({12, 8}, 1.1, 0.3), want = full.run(x, at::kDouble);
  ops::expect_both([&](at::ScalarType type) { return m.run(x, type); }, want, 1e-13);
  ops::expect_both([&](at::ScalarType type) { return m.run(x, type, {5, 7}); }, want, 1e-13);
}

}  // namespace
}  // namespace tessera::nn::native_sparse_attention_test
