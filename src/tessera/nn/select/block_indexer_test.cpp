// Block indexer: attention over the blocks that it chooses against loops over queries and heads,
// and its forms against each other. tests/golden/families/minimax_m3_vl_text holds the published
// one.
#include "tessera/nn/select/block_indexer.h"

#include <gmock/gmock.h>

#include "tessera/base/testing.h"
#include "tessera/nn/mixer/mixer_testing.h"
#include "tessera/nn/select/indexer_testing.h"
#include "tessera/ops/attention/indexer.h"
#include "tessera/ops/basic/rope.h"

namespace tessera::nn::block_indexer_test {
namespace {

using ops::gen;

constexpr const char* kMixer = R"({"type": "attention", "n_heads": 4, "n_kv_heads": 2,
    "head_dim": 4, "position": "rope")";

std::string with_blocks(int64_t top_k, const std::string& more = "") {
  return kMixer +
         std::string(
             R"(, "select": {"type": "block_indexer", "n_heads": 2, "head_dim": 6, "size": 3, "top_k": )") +
         std::to_string(top_k) + more + "}}";
}

TEST(BlockIndexer, IsItsPlainForm) {
  constexpr int64_t kTokens = 11, kHeads = 4, kSize = 3;
  for (const int64_t local : {0, 1, 2}) {
    MixerUnderTest m(with_blocks(2, R"(, "norm": null, "local": )" + std::to_string(local)), 8);
    m.fill();
    const Tensor x = gen({kTokens, 8}, 1.7, 0.4);
    const auto table = ops::rotary_table(at::arange(kTokens), {1.0, 0.01}, 1, at::kDouble);
    const auto heads = [&](const char* name, int64_t n) {
      return x.matmul(m.values.at(name).t()).reshape({kTokens, n, -1});
    };
    const Tensor q = ops::rope(heads("q.weight", kHeads), table, false),
                 k = ops::rope(heads("k.weight", 2), table, false), v = heads("v.weight", 2),
                 index_q = ops::rope(heads("select.q.weight", 2), table, false),
                 index_k = ops::rope(heads("select.k.weight", 1), table, false).squeeze(1);
    Tensor out = at::zeros({kTokens, kHeads, 4}, at::kDouble);
    for (int64_t t = 0; t < kTokens; ++t)
      for (int64_t h = 0; h < kHeads; ++h) {
        std::vector<std::pair<double, int64_t>> best;  // the negative of a block's score first
        for (int64_t b = 0; b * kSize <= t; ++b) {
          double most = -1e300;
          for (int64_t s = b * kSize; s < std::min((b + 1) * kSize, t + 1); ++s)
            most = std::max(most, index_q[t][h / 2].dot(index_k[s]).item<double>());
          best.emplace_back(t / kSize - b < local ? -1e300 : -most, b);
        }
        std::sort(best.begin(), best.end());
        best.resize(std::min<size_t>(best.size(), 2));
        Tensor seen = at::full({kTokens}, -1e300, at::kDouble);
        for (const auto& [score, b] : best)
          for (int64_t s = b * kSize; s < std::min((b + 1) * kSize, t + 1); ++s) seen[s] = 0;
        const Tensor p =
            at::softmax(k.select(1, h / 2).matmul(q[t][h]) * 0.5 + seen, 0);
        out[t][h] = p.matmul(v.select(1, h / 2));
      }
    const Tensor want = out.reshape({kTokens, -1}).matmul(m.values.at("o.weight").t());
    ops::expect_near(m.run(x, at::kDouble), want, 1e-12);
    ops::expect_near(m.run(x, at::kDouble, {5, 1, 5}), want, 1e-12);
  }
}

TEST(BlockIndexer, AllBlocksAreDenseAttentionBitForBit) {
  MixerUnderTest selected(with_blocks(4), 8), dense(std::string(kMixer) + "}", 8);
  selected.fill();
  dense.values = selected.values;
  expect_dense_bits(selected, dense, gen({11, 8}, 1.7, 0.4),
                    {{}, {11}, {3, 1, 5, 2}, std::vector<int64_t>(11, 1)});
}

TEST(BlockIndexer, EveryFormReadsTheSameBlocks) {
  MixerUnderTest m(with_blocks(2, R"(, "layout": "interleaved")"), 8);
  m.fill();
  expect_same_choice(m, gen({13, 8}, 1.7, 0.4),
                     {{13}, {2, 11}, {6, 7}, {3, 1, 5, 4}, std::vector<int64_t>(13, 1)});
}

TEST(BlockIndexer, LearnsFromItsLossAlone) {
  MixerUnderTest m(with_blocks(2, R"(, "kl_loss": 2)"), 8);
  m.fill();
  expect_learns_alone(m, {9, 4});
}

TEST(BlockIndexer, LossOfOneHeadWithBlocksOfOneKeyIsThatOfItsSoftmax) {
  // of all keys, by hand
  const Tensor q = gen({4, 1, 3}, .5, .3), k = gen({4, 3}, .8, .2), main_q = gen({4, 2, 3}, .7, .1),
               main_k = gen({4, 1, 3}, 1.1, .4);
  ops::IndexTarget target{main_q, main_k, {}};
  target.how.scale = .5;
  const Tensor loss = ops::block_index_loss(q, k, .7, {}, 1, target);
  for (int64_t t = 0; t < 4; ++t) {
    const Tensor keys = main_k.select(1, 0).narrow(0, 0, t + 1);
    const Tensor p = (at::softmax(keys.matmul(main_q[t][0]) * .5, 0) +
                      at::softmax(keys.matmul(main_q[t][1]) * .5, 0)) /
                     2;
    const Tensor log_q = at::log_softmax(k.narrow(0, 0, t + 1).matmul(q[t][0]) * .7, 0);
    EXPECT_NEAR(loss[t].item<double>(), (p * (p.log() - log_q)).sum().item<double>(), 1e-12);
  }
}

TEST(BlockIndexer, Refusals) {
  const auto refused = [](const std::string& json) {
    return test::error_of([&] { MixerUnderTest(json, 8); });
  };
  EXPECT_THAT(refused(with_blocks(2, R"(, "local": 3)")), ::testing::HasSubstr("local = 3"));
  EXPECT_THAT(refused(with_blocks(2, R"(, "rotary_dim": 2)")),
              ::testing::HasSubstr("turns 4 channels"));
  EXPECT_THAT(refused(std::string(kMixer) +
                      R"(, "select": {"type": "block_indexer", "n_heads": 3, "head_dim": 6}})"),
              ::testing::HasSubstr("divides them"));
}

}  // namespace
}  // namespace tessera::nn::block_indexer_test
