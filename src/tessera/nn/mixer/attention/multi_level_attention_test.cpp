// Multi-level attention against the published numbers and its exact identities.
#include "tessera/nn/mixer/attention/multi_level_attention.h"

#include <limits>

#include "tessera/base/testing.h"
#include "tessera/nn/mixer/mixer_testing.h"

namespace tessera::nn::multi_level_attention_test {
namespace {

using ops::gen;

TEST(MultiLevelAttention, RangesTileThePast) {
  const MixerUnderTest m(
      R"({"type": "multi_level_attention", "n_heads": 1, "ratios": [1, 2, 4], "windows": [2, 4]})",
      2);
  const auto& config = m.part.as<MultiLevelAttentionConfig>();
  for (int64_t i = 0; i < 200; ++i) {
    const auto ranges = config.causal_ranges(i);
    int64_t end = i + 1;
    for (size_t l = 0; l < 3; ++l) {
      EXPECT_EQ(ranges[l].end, end) << i;
      EXPECT_LE(ranges[l].begin, ranges[l].end) << i;
      EXPECT_TRUE(l == 0 || ranges[l].end % config.ratios[l] == 0) << i;
      EXPECT_EQ(ranges[l].begin % config.ratios[l], 0) << i;
      end = ranges[l].begin;
    }
    EXPECT_EQ(end, 0) << i;
  }
  const auto at11 = config.causal_ranges(11), at5 = config.causal_ranges(5);
  EXPECT_EQ(at11[0].begin, 10);
  EXPECT_EQ(at11[1].begin, 4);
  EXPECT_EQ(at5[0].begin, 4);
  EXPECT_EQ(at5[1].begin, 0);
}

TEST(MultiLevelAttention, GoldenG10) {
  MixerUnderTest m(R"({"type": "multi_level_attention", "n_heads": 1, "head_dim": 2,
      "ratios": [1, 2, 4], "windows": [2, 4]})",
                   12);
  m.values = {{"q.weight", weight_giving(gen({12, 2}, 0.37, 0.11), 12)},
              {"k.weight", weight_giving(gen({12, 2}, 0.53, 0.29), 12)},
              {"v.weight", weight_giving(gen({12, 2}, 0.71, 0.05), 12)},
              {"o.weight", at::eye(12, at::kDouble).narrow(1, 0, 2)}};
  const Tensor x = at::eye(12, at::kDouble), picked = at::tensor({0, 5, 11}, at::kLong);
  const Tensor want = ops::tensor(
      {0.04997916927, 0.6889214451, -0.07988246725, 0.1424861707, 0.06574593172, -0.07549083556},
      {3, 2});
  for (const std::vector<int64_t>& calls : {std::vector<int64_t>{}, {5, 1, 4, 2}})
    ops::expect_both(
        [&](at::ScalarType type) {
          return m.run(x, type, calls).index_select(0, picked).narrow(1, 0, 2);
        },
        want, 1e-9);
}

/// The entries of levels, from the definition: rows of one kv head, [T, D].
struct Pools {
  const MixerUnderTest& m;
  const MultiLevelAttentionConfig& config;

  Tensor entry(const Tensor& rows_TD, size_t l, int64_t b, const char* of) const {
    if (l == 0) return rows_TD[b];
    const bool learned = config.pool != LevelPool::mean && config.pool != LevelPool::max;
    if (config.source == LevelSource::raw || !learned)
      return pooled(rows_TD.narrow(0, b * config.ratios[l], config.ratios[l]), l, of);
    std::vector<Tensor> below;
    const int64_t r = config.ratios[l] / config.ratios[l - 1];
    for (int64_t j = 0; j < r; ++j) below.push_back(entry(rows_TD, l - 1, b * r + j, of));
    return pooled(at::stack(below), l, of);
  }
  Tensor pooled(const Tensor& block_RD, size_t l, const char* of) const {
    const auto value = [&](const char* name) {
      return m.values.at(fmt::format("level{}.{}{}", l, of, name));
    };
    switch (config.pool) {
      case LevelPool::mean:
        return block_RD.mean(0);
      case LevelPool::max:
        return block_RD.amax(0);
      case LevelPool::depthwise_conv:
        return (block_RD * value("").squeeze(1)).sum(0);
      case LevelPool::conv:
        return at::mv(value(".weight"), block_RD.flatten());
      case LevelPool::mlp:
        break;
    }
    const Tensor hidden =
        at::mv(value(".up.weight"), (block_RD + value(".place")).flatten()) + value(".up.bias");
    return at::mv(value(".down.weight"), at::gelu(hidden));
  }
};

// Row by row in double, from the ranges: pools, and one softmax or one for each level.
TEST(MultiLevelAttention, AgainstTheDefinition) {
  constexpr int64_t kT = 23, kD = 8;
  const Tensor x = gen({kT, kD}, 1.3, 0.2);
  for (const char* options :
       {R"("mode": "partition")", R"("mode": "overlap")", R"("pool": "max")",
        R"("pool": "max", "mode": "overlap")", R"("pool": "depthwise_conv")",
        R"("pool": "depthwise_conv", "mode": "overlap")", R"("pool": "conv")",
        R"("pool": "mlp", "pool_hidden": 5)", R"("pool": "depthwise_conv", "source": "cascade")",
        R"("pool": "conv", "source": "cascade")", R"("pool": "mlp", "source": "cascade")",
        R"("combine": "gated")",
        R"("combine": "gated", "mode": "overlap", "pool": "mlp", "source": "cascade")"}) {
    SCOPED_TRACE(options);
    MixerUnderTest m(fmt::format(
                         R"({{"type": "multi_level_attention", "n_heads": 2, "n_kv_heads": 1,
                "ratios": [1, 3, 6], "windows": [4, 5], {}}})",
                         options),
                     kD);
    m.fill();
    const auto& config = m.part.as<MultiLevelAttentionConfig>();
    const bool gated = config.combine == LevelCombine::gated;
    const Tensor q = at::matmul(x, m.values["q.weight"].t()).reshape({kT, 2, 4}),
                 k = at::matmul(x, m.values["k.weight"].t()),
                 v = at::matmul(x, m.values["v.weight"].t());
    const Tensor gates =
        gated ? at::sigmoid(at::matmul(x, m.values["gate.weight"].t()) + m.values["gate.bias"])
                    .reshape({kT, 3, 2, 1})
              : Tensor();
    const Pools pools{m, config};
    Tensor heads = at::zeros({kT, 2, 4}, at::kDouble);
    for (int64_t i = 0; i < kT; ++i) {
      const auto ranges = config.causal_ranges(i);
      std::vector<Tensor> keys, values;
      std::vector<double> biases;
      const auto read = [&] {
        const Tensor weights = at::softmax(
            at::matmul(q[i], at::stack(keys).t()) / 2 + at::tensor(biases, at::kDouble), -1);
        return at::matmul(weights, at::stack(values));
      };
      for (size_t l = 0; l < 3; ++l) {
        const int64_t r = config.ratios[l];
        for (int64_t b = ranges[l].begin / r; b < ranges[l].end / r; ++b) {
          keys.push_back(pools.entry(k, l, b, "k"));
          values.push_back(pools.entry(v, l, b, "v"));
          biases.push_back(std::log(static_cast<double>(r)));
        }
        if (!gated || keys.empty()) continue;
        heads[i] += gates[i][static_cast<int64_t>(l)] * read();
        keys.clear(), values.clear(), biases.clear();
      }
      if (!gated) heads[i].copy_(read());
    }
    const Tensor want = at::matmul(heads.reshape({kT, 8}), m.values["o.weight"].t());
    ops::expect_both([&](at::ScalarType type) { return m.run(x, type); }, want, 1e-12);
    ops::expect_both(
        [&](at::ScalarType type) {
          return m.run(x, type, {7, 1, 1, 9, 5});
        },
        want, 1e-12);
  }
}

TEST(MultiLevelAttention, WideWindowIsFullAttention) {
  const Tensor x = gen({13, 6}, 0.9, 0.2);
  MixerUnderTest full(R"({"type": "attention", "n_heads": 2, "head_dim": 4, "position": "rope"})",
                      6);
  full.fill();
  for (const char* text :
       {R"("ratios": [1, 2], "windows": [13])", R"("ratios": [1], "windows": [])"}) {
    MixerUnderTest m(R"({"type": "multi_level_attention", "n_heads": 2, "head_dim": 4,
        "position": "rope", )" +
                         std::string(text) + "}",
                     6);
    m.values = full.values;
    const Tensor want = full.run(x, at::kDouble);
    ops::expect_both([&](at::ScalarType type) { return m.run(x, type); }, want, 1e-13);
    ops::expect_both([&](at::ScalarType type) { return m.run(x, type, {6, 1, 6}); }, want, 1e-13);
  }
}

TEST(MultiLevelAttention, EqualKeysInBlocksAreFullAttention) {
  // keys constant inside the largest blocks, values free: a block of r keys weighs like r tokens
  constexpr int64_t kT = 20;
  MixerUnderTest m(R"({"type": "multi_level_attention", "n_heads": 1, "head_dim": 2,
      "ratios": [1, 2, 4], "windows": [3, 5]})",
                   kT),
      full(R"({"type": "attention", "n_heads": 1, "head_dim": 2})", kT);
  const Tensor keys = gen({5, 2}, 1.1, 0.2).repeat_interleave(4, 0);
  m.values = {{"q.weight", weight_giving(gen({kT, 2}, 0.37, 0.11), kT)},
              {"k.weight", weight_giving(keys, kT)},
              {"v.weight", weight_giving(gen({kT, 2}, 0.71, 0.05), kT)},
              {"o.weight", at::eye(kT, at::kDouble).narrow(1, 0, 2)}};
  full.values = m.values;
  const Tensor x = at::eye(kT, at::kDouble);
  ops::expect_near(m.run(x, at::kDouble), full.run(x, at::kDouble), 1e-13);
}

TEST(MultiLevelAttention, RotatesABlockToItsLastToken) {
  // blocks of 2: the second block of level 1 stands at position 3
  MixerUnderTest m(R"({"type": "multi_level_attention", "n_heads": 1, "head_dim": 2,
      "ratios": [1, 2], "windows": [1], "position": "rope"})",
                   4);
  m.fill();
  const Tensor x = gen({5, 4}, 1.1, 0.3);
  const auto projected = [&](const char* name) { return at::matmul(x, m.values[name].t()); };
  const auto turned = [](const Tensor& row, double p) {
    const double c = std::cos(p), s = std::sin(p);
    return ops::tensor({row[0].item<double>() * c - row[1].item<double>() * s,
                        row[0].item<double>() * s + row[1].item<double>() * c});
  };
  const Tensor q = turned(projected("q.weight")[4], 4), k = projected("k.weight"),
               v = projected("v.weight");
  // query 4 reads token 4 and the blocks {0, 1} and {2, 3}
  const Tensor keys = at::stack({turned(k.narrow(0, 0, 2).mean(0), 1),
                                 turned(k.narrow(0, 2, 2).mean(0), 3), turned(k[4], 4)}),
               values = at::stack({v.narrow(0, 0, 2).mean(0), v.narrow(0, 2, 2).mean(0), v[4]});
  const Tensor weights = at::softmax(
      at::mv(keys, q) / std::sqrt(2.0) + ops::tensor({std::log(2.0), std::log(2.0), 0}), 0);
  const Tensor want = at::mv(m.values["o.weight"], at::mv(values.t(), weights));
  ops::expect_both([&](at::ScalarType type) { return m.run(x, type)[4]; }, want, 1e-13);
}

/// One key and value of a level, by what the definition says of the patches it is made of.
struct Region {
  Tensor k, v;
  double gain = 0;
};

/// Windows of side r of a grid of cells, each with places in row-major order.
std::vector<std::vector<int64_t>> windows_of(int64_t rows, int64_t columns, int64_t r) {
  std::vector<std::vector<int64_t>> out;
  for (int64_t y = 0; y < rows; y += r)
    for (int64_t x = 0; x < columns; x += r) {
      out.emplace_back();
      for (int64_t i = y; i < std::min(rows, y + r); ++i)
        for (int64_t j = x; j < std::min(columns, x + r); ++j)
          out.back().push_back(i * columns + j);
    }
  return out;
}

struct ImageCase {
  const char* options;
  int64_t rows, columns, first;
  std::vector<int64_t> ratios;
};

// Query by query in double, from rows and columns: two query heads on each of two kv heads.
TEST(MultiLevelAttention, RegionsOfAnImageAgainstTheDefinition) {
  constexpr int64_t kD = 8, kH = 4, kG = 2, kK = 2;
  const std::vector<ImageCase> images = {
      {R"("count_bias": true)", 5, 7, 1, {1, 2, 4}},
      {R"("count_bias": false)", 5, 7, 0, {1, 2, 4}},
      {R"("pool": "max")", 3, 5, 1, {1, 3}},
      {R"("combine": "gated")", 5, 4, 1, {1, 2}},
      {R"("combine": "gated", "count_bias": false)", 5, 4, 1, {1, 2}},
      {R"("combine": "gated", "semantic": 3)", 4, 5, 1, {1, 2}},
      {R"("semantic": 2)", 5, 7, 1, {1, 2, 4}},
      {R"("semantic": 2, "count_bias": false)", 3, 4, 0, {1}},
      {R"("pool": "depthwise_conv")", 4, 8, 1, {1, 2, 4}},
      {R"("pool": "conv")", 4, 8, 0, {1, 2, 4}},
      {R"("pool": "conv", "source": "cascade", "semantic": 1)", 4, 8, 1, {1, 2, 4}},
      {R"("pool": "mlp", "pool_hidden": 3)", 4, 8, 1, {1, 2, 4}},
      {R"("pool": "mlp", "source": "cascade")", 4, 8, 1, {1, 2, 4}},
      {R"("pool": "depthwise_conv", "source": "cascade")", 8, 4, 1, {1, 2, 4}},
  };
  for (const ImageCase& image : images) {
    SCOPED_TRACE(image.options);
    const auto& [options, rows, columns, first, ratios] = image;
    const int64_t patches = rows * columns, t = first + patches;
    MixerUnderTest m(
        fmt::format(R"({{"type": "multi_level_attention", "n_heads": 4, "n_kv_heads": 2,
            "ratios": [{}], "windows": [{}],
            "grid": {{"rows": {}, "columns": {}, "first": {}}}, {}}})",
                    fmt::join(ratios, ", "), ratios.size() > 1 ? "3" : "", rows, columns, first,
                    options),
        kD, false);
    m.fill();
    const auto& config = m.part.as<MultiLevelAttentionConfig>();
    const bool gated = config.combine == LevelCombine::gated, cascade = config.cascades();
    const auto levels = static_cast<int64_t>(ratios.size()), all = levels + (config.semantic > 0);
    const Tensor x = gen({t, kD}, 1.3, 0.2);
    const auto projected = [&](const char* name, int64_t heads) {
      return at::matmul(x, m.values.at(name).t()).reshape({t, heads, kK});
    };
    const Tensor q = projected("q.weight", kH), k = projected("k.weight", kG),
                 v = projected("v.weight", kG);
    const auto window = [&](const Tensor& cells_PGK, int64_t l, const char* of) -> Tensor {
      const auto value = [&](const char* name) {
        return m.values.at(fmt::format("level{}.{}{}", l, of, name));
      };
      switch (config.pool) {
        case LevelPool::mean:
          return cells_PGK.mean(0);
        case LevelPool::max:
          return cells_PGK.amax(0);
        case LevelPool::depthwise_conv:
          return (cells_PGK * value("")).sum(0);
        case LevelPool::conv:
          return at::mv(value(".weight"), cells_PGK.flatten()).reshape({kG, kK});
        case LevelPool::mlp:
          break;
      }
      std::vector<Tensor> heads;
      for (int64_t g = 0; g < kG; ++g) {
        const Tensor placed = (cells_PGK.select(1, g) + value(".place")).flatten();
        const Tensor hidden = at::gelu(at::mv(value(".up.weight"), placed) + value(".up.bias"));
        heads.push_back(at::mv(value(".down.weight"), hidden));
      }
      return at::stack(heads);
    };
    // the regions of levels behind the first, which every query reads
    std::vector<std::vector<Region>> regions(static_cast<size_t>(all));
    Tensor k_cells = k.narrow(0, first, patches), v_cells = v.narrow(0, first, patches);
    const Tensor k_patches = k_cells, v_patches = v_cells;
    for (int64_t l = 1; l < levels; ++l) {
      const auto at = static_cast<size_t>(l);
      const int64_t below = cascade ? ratios[at - 1] : 1;
      std::vector<Tensor> keys, values;
      for (const std::vector<int64_t>& places :
           windows_of(rows / below, columns / below, ratios[at] / below)) {
        const Tensor picked = at::tensor(places, at::kLong);
        keys.push_back(window(k_cells.index_select(0, picked), l, "k"));
        values.push_back(window(v_cells.index_select(0, picked), l, "v"));
        const auto count = static_cast<double>(picked.numel() * below * below);
        regions[at].push_back(
            {keys.back(), values.back(), config.count_bias ? std::log(count) : 0});
      }
      if (cascade) k_cells = at::stack(keys), v_cells = at::stack(values);
    }
    for (int64_t s = 0; s < config.semantic; ++s) {
      Region summary{at::zeros({kG, kK}, at::kDouble), at::zeros({kG, kK}, at::kDouble), 0};
      for (int64_t g = 0; g < kG; ++g) {
        const Tensor u = m.values.at("semantic")[s][g],
                     a = at::softmax(at::mv(k_patches.select(1, g), u) / std::sqrt(2.0), 0);
        summary.k[g].copy_(at::mv(k_patches.select(1, g).t(), a));
        summary.v[g].copy_(at::mv(v_patches.select(1, g).t(), a));
      }
      if (config.count_bias)
        summary.gain =
            std::log(static_cast<double>(patches) / static_cast<double>(config.semantic));
      regions.back().push_back(summary);
    }
    const Tensor gates =
        gated ? at::sigmoid(at::matmul(x, m.values["gate.weight"].t()) + m.values["gate.bias"])
                    .reshape({t, all, kH})
              : Tensor();
    Tensor heads = at::zeros({t, kH, kK}, at::kDouble);
    for (int64_t i = 0; i < t; ++i) {
      regions[0].clear();
      for (int64_t j = 0; j < t; ++j) {
        const int64_t a = i - first, b = j - first;
        const bool near =
            std::abs(a / columns - b / columns) <= 1 && std::abs(a % columns - b % columns) <= 1;
        if (levels == 1 || a < 0 || b < 0 || near) regions[0].push_back({k[j], v[j], 0});
      }
      for (int64_t h = 0; h < kH; ++h) {
        const int64_t g = h / (kH / kG);
        const auto read = [&](size_t from, size_t to) {
          std::vector<Tensor> logits, values;
          for (size_t l = from; l < to; ++l)
            for (const Region& region : regions[l]) {
              logits.push_back(at::dot(q[i][h], region.k[g]) / std::sqrt(2.0) + region.gain);
              values.push_back(region.v[g]);
            }
          return at::mv(at::stack(values).t(), at::softmax(at::stack(logits), 0));
        };
        if (!gated) heads[i][h].copy_(read(0, regions.size()));
        for (int64_t l = 0; gated && l < all; ++l)
          heads[i][h] += gates[i][l][h] * read(static_cast<size_t>(l), static_cast<size_t>(l) + 1);
      }
    }
    const Tensor want = at::matmul(heads.reshape({t, kD}), m.values["o.weight"].t());
    ops::expect_both([&](at::ScalarType type) { return m.run(x, type); }, want, 1e-12);
    ops::expect_both(
        [&](at::ScalarType type) {
          return m.whole(at::cat({x, x.flip(0)}).to(type), {t, t}).narrow(0, 0, t);
        },
        want, 1e-12);
  }
}

TEST(MultiLevelAttention, SummariesOfText) {
  // a vector of zeros weighs all tokens alike: the same as a block of the whole document
  const std::string same = R"({"type": "multi_level_attention", "n_heads": 2, )";
  MixerUnderTest summary(same + R"("ratios": [1], "windows": [], "semantic": 1})", 6, false),
      block(same + R"("ratios": [1, 9], "windows": [20]})", 6, false);
  summary.values = {{"semantic", at::zeros({1, 2, 3}, at::kDouble)}};
  summary.fill();
  block.values = summary.values;
  block.values.erase("semantic");
  const Tensor x = gen({9, 6}, 0.9, 0.2), want = block.run(x, at::kDouble);
  ops::expect_both([&](at::ScalarType type) { return summary.run(x, type); }, want, 1e-13);
}

TEST(MultiLevelAttention, RefusesOtherImages) {
  MixerUnderTest m(R"({"type": "multi_level_attention", "n_heads": 2, "ratios": [1, 2],
      "windows": [3], "grid": {"rows": 3, "columns": 4, "first": 1}})",
                   6, false);
  m.fill();
  for (const int64_t t : {12, 14})
    test::expect_error(
        ErrorKind::input,
        fmt::format("[multi_level_attention] a document of {} tokens; expected first + rows * "
                    "columns = 1 + 3 * 4 = 13",
                    t),
        [&] {
          m.run(gen({t, 6}, 0.9, 0.2), at::kDouble);
        });
}

TEST(MultiLevelAttention, RefusesGridsThatCannotBe) {
  const auto refused = [](const char* options, const char* why, bool causal = false) {
    test::expect_error(ErrorKind::spec, why, [&] {
      MixerUnderTest(
          fmt::format(R"({{"type": "multi_level_attention", "n_heads": 2, {}}})", options), 8,
          causal);
    });
  };
  refused(R"("ratios": [1, 2], "windows": [3], "grid": {"rows": 4, "columns": 4})",
          "grid needs an encoder", true);
  refused(R"("semantic": 2)", "semantic = 2 needs an encoder", true);
  refused(R"("grid": {"rows": 4})", "grid of 4 rows and 0 columns; expected both or none");
  refused(R"("grid": {"rows": 4, "columns": 4, "first": 2})",
          ".grid.first] found 2; expected at most 1");
  refused(R"("ratios": [1, 8], "windows": [3], "grid": {"rows": 4, "columns": 4})",
          "windows of 8 are larger than it");
  refused(R"("ratios": [1, 2], "windows": [3], "pool": "conv", "grid": {"rows": 4, "columns": 5})",
          "pool conv needs whole windows, but a grid of 4 x 5 cuts those of side 2");
  refused(
      R"("ratios": [1, 2], "windows": [3], "position": "rope", "grid": {"rows": 4, "columns": 4})",
      "position rope with a grid");
  refused(R"("semantic": 2, "position": "rope")", "position rope with semantic");
  refused(R"("ratios": [1, 2], "windows": [3], "combine": "gated", "count_bias": false,
             "grid": {"rows": 4, "columns": 4})",
          "count_bias = false with combine gated");
}

}  // namespace
}  // namespace tessera::nn::multi_level_attention_test
