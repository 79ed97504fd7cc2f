// Pooled indexer against the numbers of tools/golden/ngram_memory.py, attention over the blocks
// that it chooses against loops over queries and heads, and its forms against each other.
// tests/golden/families/qwen4_exp_text holds the published one.
#include "tessera/nn/select/pooled_indexer.h"

#include <gmock/gmock.h>

#include "tessera/base/testing.h"
#include "tessera/nn/mixer/mixer_testing.h"
#include "tessera/nn/select/indexer_testing.h"
#include "tessera/nn/select/selected_keys.h"
#include "tessera/ops/attention/indexer.h"
#include "tessera/ops/basic/rope.h"

namespace tessera::nn::pooled_indexer_test {
namespace {

using ops::gen;

/// The golden's queries and block keys, rotated, and its main attention.
struct Golden {
  static constexpr int64_t kTokens = 8, kSize = 2, kTopK = 2;
  Tensor q_THD, k_BD, main_q_THD, main_k_THD, main_v_THV;

  explicit Golden(at::ScalarType type) {
    const auto table = [](const Tensor& positions) {
      return ops::rotary_table(positions, {1.0}, 1, at::kDouble);
    };
    q_THD = ops::rope(gen({kTokens, 2, 4}, .5, .3), table(at::arange(kTokens)), false).to(type);
    const Tensor mean = gen({kTokens, 4}, .8, .2).reshape({-1, kSize, 4}).mean(1);
    const Tensor normed = mean / (mean.square().mean(-1, true) + 1e-6).sqrt();
    k_BD = ops::rope(normed.unsqueeze(1), table(at::arange(0, kTokens, kSize)), false)
               .squeeze(1)
               .to(type);
    const auto by_token = [&](const Tensor& x) { return x.transpose(0, 1).contiguous().to(type); };
    main_q_THD = by_token(gen({2, kTokens, 4}, .7, .1));
    main_k_THD = by_token(gen({2, kTokens, 4}, 1.1, .4));
    main_v_THV = by_token(gen({2, kTokens, 2}, .9, .2));
  }
  Tensor chosen() const {
    const Tensor ones = at::ones({kTokens, 2}, q_THD.options());
    return ops::top_pooled({q_THD, ones, {k_BD}, .5, 0}, kTopK, kSize);
  }
  Tensor loss(const Tensor& chosen) const {
    ops::IndexTarget target{main_q_THD, main_k_THD, {}};
    target.how.scale = .5;
    return ops::pooled_index_loss(q_THD, k_BD, .5, chosen, kSize, target);
  }
};

TEST(PooledIndexerGolden, BlocksOfGreatestScoreAndWhatIsReadFromThem) {
  // the block after the last complete one, which may begin after the query
  const std::vector<std::vector<int32_t>> blocks = {{0},       {0, 1},    {0, 1},    {0, 1, 2},
                                                    {0, 1, 2}, {1, 2, 3}, {0, 2, 3}, {0, 1, 4}};
  const Tensor want =
      ops::tensor({0.19866933, 0.89120736, 0.44301723, 0.66703303, 0.53096268, 0.19206107,
                   -0.30630179, 0.117468, 0.5153173, 0.28398329, -0.30180479, 0.03642576,
                   0.41181251, -0.01196082, -0.05853383, 0.38018721},
                  {8, 2});
  for (const bool kernels : {false, true}) {
    const at::AutoGradMode record(!kernels);
    const Golden g(kernels ? at::kFloat : at::kDouble);
    const Tensor chosen = g.chosen();
    for (size_t t = 0; t < blocks.size(); ++t) {
      const int32_t* row = chosen.const_data_ptr<int32_t>() + t * 3;
      EXPECT_EQ(std::vector<int32_t>(row, row + blocks[t].size()), blocks[t]) << t;
    }
    ops::ScoreOptions how;
    how.scale = .5;
    how.visibility = std::make_shared<SelectedKeys>(chosen, 0, Golden::kSize);
    const Tensor out = ops::attention(g.main_q_THD, {{g.main_k_THD, g.main_v_THV, 0}}, 0, how);
    ops::expect_near(out.select(1, 0), want, kernels ? 1e-6 : 5e-9);
  }
}

TEST(PooledIndexerGolden, DivergenceFromTheAttentionsWeights) {
  const Golden g(at::kDouble);
  ops::expect_near(
      g.loss({}),
      ops::tensor({0, 0, 0, 0.16173373, 0.11789809, 0.12278450, 0.00723333, 0.02403939}), 5e-9);
  ops::expect_near(
      g.loss(g.chosen()),
      ops::tensor({0, 0, 0, 0.16173373, 0.11789809, 0.00043172, 0.00004126, 0.00079627}), 5e-9);
}

TEST(PooledIndexer, GradientsOfTheDivergence) {
  Golden g(at::kDouble);
  const Tensor chosen = g.chosen();
  for (Tensor* input : {&g.q_THD, &g.k_BD}) {
    input->requires_grad_(true);
    g.loss(chosen).sum().backward();
    const Tensor gradient = input->grad().flatten();
    input->requires_grad_(false);
    for (int64_t i = 0; i < input->numel(); ++i) {
      Tensor number = input->view(-1)[i];
      constexpr double kStep = 1e-6;
      number += kStep;
      const double above = g.loss(chosen).sum().item<double>();
      number -= 2 * kStep;
      const double below = g.loss(chosen).sum().item<double>();
      number += kStep;
      EXPECT_NEAR(gradient[i].item<double>(), (above - below) / (2 * kStep), 1e-8);
    }
  }
}

constexpr const char* kMixer = R"({"type": "attention", "n_heads": 4, "n_kv_heads": 2,
    "head_dim": 4, "position": "rope")";

std::string with_blocks(int64_t top_k, const std::string& more = "", int64_t size = 3) {
  return kMixer +
         fmt::format(
             R"(, "select": {{"type": "pooled_indexer", "n_heads": 2, "head_dim": 6, "size": {}, "top_k": {}{}}}}})",
             size, top_k, more);
}

TEST(PooledIndexer, IsItsPlainForm) {
  constexpr int64_t kTokens = 14, kHeads = 4;
  for (const int64_t size : {1, 2, 3}) {
    MixerUnderTest m(with_blocks(2, R"(, "norm": null)", size), 8);
    m.fill();
    const Tensor x = gen({kTokens, 8}, 1.7, 0.4);
    const auto turned = [&](const Tensor& y, const Tensor& positions) {
      return ops::rope(y, ops::rotary_table(positions, {1.0, 0.01}, 1, at::kDouble), false);
    };
    const auto heads = [&](const char* name, int64_t n) {
      return x.matmul(m.values.at(name).t()).reshape({kTokens, n, -1});
    };
    const Tensor places = at::arange(kTokens);
    const Tensor q = turned(heads("q.weight", kHeads), places),
                 k = turned(heads("k.weight", 2), places), v = heads("v.weight", 2),
                 index_q = turned(heads("select.q.weight", 2), places),
                 raw = heads("select.k.weight", 1).squeeze(1);
    Tensor out = at::zeros({kTokens, kHeads, 4}, at::kDouble);
    for (int64_t t = 0; t < kTokens; ++t) {
      const int64_t complete = (t + 1) / size;
      std::vector<std::pair<double, int64_t>> best;  // the negative of a block's score first
      for (int64_t b = 0; b < complete; ++b) {
        const Tensor key =
            turned(raw.narrow(0, b * size, size).mean(0).reshape({1, 1, 6}), at::tensor({b * size}))
                .flatten();
        double score = 0;
        for (int64_t h = 0; h < 2; ++h)
          score += std::max(0.0, index_q[t][h].dot(key).item<double>());
        best.emplace_back(-score, b);
      }
      std::sort(best.begin(), best.end());
      best.resize(std::min<size_t>(best.size(), 2));
      Tensor seen = at::full({kTokens}, -1e300, at::kDouble);
      for (const auto& [score, b] : best) seen.narrow(0, b * size, size).zero_();
      seen.narrow(0, complete * size, t + 1 - complete * size).zero_();
      for (int64_t h = 0; h < kHeads; ++h) {
        const Tensor p = at::softmax(k.select(1, h / 2).matmul(q[t][h]) * 0.5 + seen, 0);
        out[t][h] = p.matmul(v.select(1, h / 2));
      }
    }
    const Tensor want = out.reshape({kTokens, -1}).matmul(m.values.at("o.weight").t());
    ops::expect_near(m.run(x, at::kDouble), want, 1e-12);
    ops::expect_near(m.run(x, at::kDouble, {5, 1, 8}), want, 1e-12);
  }
}

// 4 blocks of 3 keys: documents of up to 14
TEST(PooledIndexer, AllBlocksAreDenseAttentionBitForBit) {
  MixerUnderTest selected(with_blocks(4), 8), dense(std::string(kMixer) + "}", 8);
  selected.fill();
  dense.values = selected.values;
  const Tensor x = gen({15, 8}, 1.7, 0.4);
  expect_dense_bits(selected, dense, x.narrow(0, 0, 14),
                    {{}, {14}, {3, 1, 8, 2}, std::vector<int64_t>(14, 1)});
  // of the next query one of five complete blocks is left out
  for (const at::ScalarType type : {at::kDouble, at::kFloat})
    for (const bool record : {true, false}) {
      const at::AutoGradMode mode(record);
      EXPECT_FALSE(at::allclose(selected.run(x, type), dense.run(x, type)));
    }
}

TEST(PooledIndexer, EveryFormReadsTheSameBlocks) {
  for (const char* more : {R"(, "layout": "interleaved")",
                           R"(, "norm": {"type": "rms_norm", "weight": "plus_one"})"}) {
    MixerUnderTest m(with_blocks(2, more), 8);
    m.fill();
    expect_same_choice(m, gen({16, 8}, 1.7, 0.4),
                       {{16}, {2, 14}, {9, 7}, {3, 1, 5, 7}, std::vector<int64_t>(16, 1)});
  }
}

// blocks that begin before a call turn by the angles of the length that the document has then
TEST(PooledIndexer, TurnsBlocksByScaledAngles) {
  MixerUnderTest m(
      R"({"type": "attention", "n_heads": 2, "position": {"type": "rope", "scaling":
          {"type": "longrope", "short_factor": [1, 1.5], "long_factor": [2, 3], "original_length": 8, "factor": 4}},
          "select": {"type": "pooled_indexer", "n_heads": 2, "head_dim": 6, "size": 3, "top_k": 1}})",
      8);
  m.fill();
  const Tensor x = gen({14, 8}, 1.7, 0.4), want = m.run(x, at::kDouble);
  for (const std::vector<int64_t>& calls : {std::vector<int64_t>{14}, {10, 1, 3}})
    ops::expect_near(m.run(x, at::kDouble, calls), want, 1e-12);
}

TEST(PooledIndexer, LearnsFromItsLossAlone) {
  MixerUnderTest m(with_blocks(2, R"(, "kl_loss": 2)"), 8);
  m.fill();
  expect_learns_alone(m, {11, 2});  // the second has no complete block
}

TEST(PooledIndexer, Refusals) {
  const auto refused = [](const std::string& json) {
    return test::error_of([&] { MixerUnderTest(json, 8); });
  };
  EXPECT_THAT(refused(with_blocks(2, R"(, "rotary_dim": 2)")),
              ::testing::HasSubstr("turns 4 channels"));
  EXPECT_THAT(refused(with_blocks(int64_t{1} << 30)), ::testing::HasSubstr("less than 2^31 keys"));
}

}  // namespace
}  // namespace tessera::nn::pooled_indexer_test
