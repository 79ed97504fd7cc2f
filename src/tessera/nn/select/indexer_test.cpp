// The lightning indexer against independent numbers (successors of attention 1), and attention over
// the keys that it chooses.
#include "tessera/nn/select/indexer.h"

#include <gmock/gmock.h>

#include "tessera/base/testing.h"
#include "tessera/nn/mixer/mixer_testing.h"
#include "tessera/nn/select/indexer_testing.h"
#include "tessera/nn/select/selected_keys.h"
#include "tessera/ops/attention/indexer.h"
#include "tessera/ops/basic/rope.h"

namespace tessera::nn::indexer_test {
namespace {

using ops::gen;

constexpr int64_t kTokens = 5, kTopK = 2;

/// The golden's queries, keys and weights of the indexer, rotated and with their factors.
struct Golden {
  Tensor q_THD, k_TD, w_TH;
  // of the main attention
  Tensor main_q_THD, main_k_THD, main_v_THV;

  explicit Golden(at::ScalarType type) {
    const auto table = ops::rotary_table(at::arange(kTokens), {1.0}, 1, at::kDouble);
    const auto turned = [&](const Tensor& x) { return ops::rope(x, table, false); };
    q_THD = turned(gen({kTokens, 2, 4}, .5, .3)).to(type);
    k_TD = turned(at::layer_norm(gen({kTokens, 4}, .8, .2), {4}, {}, {}, 1e-6).unsqueeze(1))
               .squeeze(1)
               .to(type);
    w_TH = (gen({kTokens, 2}, .6, .9) / std::sqrt(2.0)).to(type);
    const auto by_token = [&](const Tensor& x) { return x.transpose(0, 1).contiguous().to(type); };
    main_q_THD = by_token(gen({2, kTokens, 4}, .7, .1));
    main_k_THD = by_token(gen({2, kTokens, 4}, 1.1, .4));
    main_v_THV = by_token(gen({2, kTokens, 2}, .9, .2));
  }
  Tensor chosen() const { return ops::top_keys({q_THD, w_TH, {k_TD}, .5, 0}, kTopK); }
  ops::IndexTarget target() const {
    ops::IndexTarget target{main_q_THD, main_k_THD, {}};
    target.how.scale = .5;
    return target;
  }
};

void expect_sets(const Tensor& key_TK) {
  const std::vector<std::vector<int32_t>> want{{0}, {0, 1}, {0, 2}, {1, 3}, {2, 4}};
  for (size_t t = 0; t < want.size(); ++t) {
    const int32_t* keys = key_TK.const_data_ptr<int32_t>() + t * kTopK;
    EXPECT_EQ(std::vector<int32_t>(keys, keys + want[t].size()), want[t]) << t;
  }
}

TEST(IndexerGolden, Scores) {
  const Golden g(at::kDouble);
  const Tensor scores = ops::index_scores(g.q_THD, g.k_TD, g.w_TH, .5);
  const std::vector<std::vector<double>> want{{0.21820014},
                                              {0.20534149, 0.07384360},
                                              {-0.11112131, -0.52052093, 0},
                                              {-0.52665724, 0, -0.67653230, 0},
                                              {-0.06623413, -0.15947346, 0, -0.28974172, 0}};
  for (size_t t = 0; t < want.size(); ++t)
    for (size_t s = 0; s < want[t].size(); ++s)
      EXPECT_NEAR(scores[static_cast<int64_t>(t)][static_cast<int64_t>(s)].item<double>(),
                  want[t][s], 5e-9)
          << t << " " << s;
}

TEST(IndexerGolden, KeysOfGreatestScoreAndWhatIsReadFromThem) {
  // rows 2 to 4: zeros win over negatives, the earlier ones over the later
  const Tensor want = ops::tensor({0.19866933, 0.89120736, 0.44301723, 0.66703303, -0.13667015,
                                   0.10878976, -0.43499997, 0.21819405, 0.35612165, 0.21895043},
                                  {5, 2});
  for (const bool kernels : {false, true}) {
    const at::AutoGradMode record(!kernels);
    const Golden g(kernels ? at::kFloat : at::kDouble);
    const Tensor chosen = g.chosen();
    expect_sets(chosen);
    ops::ScoreOptions how;
    how.scale = .5;
    how.visibility = std::make_shared<SelectedKeys>(chosen, 0);
    const Tensor out = ops::attention(g.main_q_THD, {{g.main_k_THD, g.main_v_THV, 0}}, 0, how);
    ops::expect_near(out.select(1, 0), want, kernels ? 1e-6 : 5e-9);
  }
}

TEST(IndexerGolden, DivergenceFromTheAttentionsWeights) {
  const Golden g(at::kDouble);
  const auto loss = [&](const Tensor& chosen) {
    return ops::index_loss(g.q_THD, g.k_TD, g.w_TH, .5, chosen, g.target());
  };
  ops::expect_near(loss({}), ops::tensor({0, 0.07877834, 0.16799014, 0.10259740, 0.06328229}),
                   5e-9);
  ops::expect_near(loss(g.chosen()),
                   ops::tensor({0, 0.07877834, 0.04229908, 0.08784922, 0.02534533}), 5e-9);
}

TEST(Indexer, GradientsOfTheDivergence) {
  Golden g(at::kDouble);
  const Tensor chosen = g.chosen();
  for (Tensor* input : {&g.q_THD, &g.k_TD, &g.w_TH}) {
    input->requires_grad_(true);
    const auto loss = [&] {
      return ops::index_loss(g.q_THD, g.k_TD, g.w_TH, .5, chosen, g.target()).sum();
    };
    loss().backward();
    const Tensor gradient = input->grad().flatten();
    input->requires_grad_(false);
    for (int64_t i = 0; i < input->numel(); ++i) {
      Tensor number = input->view(-1)[i];
      constexpr double kStep = 1e-6;
      number += kStep;
      const double above = loss().item<double>();
      number -= 2 * kStep;
      const double below = loss().item<double>();
      number += kStep;
      EXPECT_NEAR(gradient[i].item<double>(), (above - below) / (2 * kStep), 1e-8);
    }
  }
}

TEST(Indexer, TiesGoToTheEarlierKeyAndNoNumberIsLeast) {
  const auto chosen = [](const std::vector<double>& scores, at::ScalarType type) {
    // one head of one channel whose product is the score
    const auto n = static_cast<int64_t>(scores.size());
    const Tensor k = at::tensor(scores, at::kDouble).to(type).reshape({n, 1});
    const at::NoGradGuard no_gradients;
    const Tensor keys = ops::top_keys({at::ones({n, 1, 1}, type), at::ones({n, 1}, type), {k}}, 2);
    const int32_t* last = keys.const_data_ptr<int32_t>() + (n - 1) * 2;
    return std::vector<int32_t>(last, last + 2);
  };
  for (const at::ScalarType type : {at::kDouble, at::kFloat}) {
    EXPECT_EQ(chosen({1, 2, 2, 2}, type), (std::vector<int32_t>{1, 2}));
    EXPECT_EQ(chosen({3, -1, 1, -2, 1}, type), (std::vector<int32_t>{0, 2}));
    EXPECT_EQ(chosen({-1, -2, -3}, type), (std::vector<int32_t>{0, 1}));
    EXPECT_EQ(chosen({std::nan(""), 1, 0.5}, type), (std::vector<int32_t>{1, 2}));
  }
}

constexpr const char* kLatent = R"({"type": "latent_attention", "n_heads": 3, "q_lora_rank": 5,
    "kv_lora_rank": 7, "qk_nope_head_dim": 5, "qk_rope_head_dim": 4, "v_head_dim": 6,
    "position": {"type": "rope", "layout": "interleaved"})";
constexpr const char* kGrouped = R"({"type": "attention", "n_heads": 4, "n_kv_heads": 2,
    "head_dim": 4, "position": "rope")";

std::string with_indexer(const std::string& mixer, int64_t top_k, const std::string& more = "") {
  return mixer + R"(, "select": {"type": "indexer", "n_heads": 3, "head_dim": 6, "top_k": )" +
         std::to_string(top_k) + more + "}}";
}

TEST(Indexer, AllKeysAreDenseAttentionBitForBit) {
  for (const char* mixer : {kLatent, kGrouped}) {
    MixerUnderTest selected(with_indexer(mixer, 11), 8), dense(std::string(mixer) + "}", 8);
    selected.fill();
    dense.values = selected.values;
    expect_dense_bits(selected, dense, gen({11, 8}, 1.7, 0.4),
                      {{}, {11}, {3, 1, 5, 2}, std::vector<int64_t>(11, 1)});
  }
}

TEST(Indexer, EveryFormReadsTheSameKeys) {
  for (const char* mixer : {kLatent, kGrouped}) {
    MixerUnderTest m(with_indexer(mixer, 4, R"(, "layout": "interleaved")"), 8),
        dense(std::string(mixer) + "}", 8);
    m.fill();
    dense.values = m.values;
    const Tensor x = gen({13, 8}, 1.7, 0.4);
    const Tensor change = m.run(x, at::kDouble) - dense.run(x, at::kDouble);
    EXPECT_GT(change.abs().max().item<double>(), 1e-2);
    expect_same_choice(m, x, {{13}, {2, 11}, {6, 7}, {3, 1, 5, 4}, std::vector<int64_t>(13, 1)});
  }
}

/// Layers of one call, one behind another.
Tensor run_layers(const std::vector<const MixerUnderTest*>& layers,
                  const Tensor& x_TD,
                  const std::vector<int64_t>& calls) {
  std::vector<std::unique_ptr<Mixer>> mixers;
  std::vector<std::unique_ptr<RowState>> states;
  for (const MixerUnderTest* m : layers) {
    mixers.push_back(build_mixer(m->part, m->builder(x_TD.scalar_type())));
    states.push_back(
        std::make_unique<RowState>(m->state(), 0, at::TensorOptions().dtype(x_TD.scalar_type())));
  }
  std::vector<Tensor> out;
  int64_t at = 0;
  for (const int64_t n : calls.empty() ? std::vector<int64_t>{x_TD.size(0)} : calls) {
    Batch batch;
    batch.segments = {{0, 0, n, at}};
    batch.ids_N = at::zeros({n}, at::kLong);
    batch.number();
    Context context;
    context.batch = &batch;
    Tensor x = x_TD.narrow(0, at, n);
    for (size_t i = 0; i < mixers.size(); ++i) {
      const StateRows rows{states[i].get()};
      x = x + run_mixer(*mixers[i], x, context, calls.empty() ? nullptr : &rows);
    }
    out.push_back(x);
    at += n;
  }
  return at::cat(out);
}

TEST(Indexer, LayersShareAChoice) {
  MixerUnderTest first(with_indexer(kLatent, 4, R"(, "name": "a")"), 8),
      second(std::string(kLatent) + R"(, "select": {"type": "indexer", "top_k": 4, "share": "a"}})",
             8),
      dense(std::string(kLatent) + "}", 8);
  first.fill();
  second.fill({.phase = 0.4});
  dense.values = second.values;
  EXPECT_EQ(second.declared().size(), dense.declared().size());
  EXPECT_EQ(second.state().size(), 1u);
  const Tensor x = gen({12, 8}, 1.3, 0.1);
  const Tensor want = run_layers({&first, &second}, x, {});
  EXPECT_GT((want - run_layers({&first, &dense}, x, {})).abs().max().item<double>(), 1e-3);
  for (const std::vector<int64_t>& calls :
       {std::vector<int64_t>{12}, {3, 1, 2, 6}, std::vector<int64_t>(12, 1)})
    ops::expect_near(run_layers({&first, &second}, x, calls), want, 1e-12);
  const at::NoGradGuard no_gradients;
  const Tensor whole = run_layers({&first, &second}, x.to(at::kFloat), {});
  for (const std::vector<int64_t>& calls : {std::vector<int64_t>{5, 7}, {1, 11}})
    EXPECT_TRUE(at::equal(run_layers({&first, &second}, x.to(at::kFloat), calls), whole));
}

TEST(Indexer, LearnsFromItsLossAlone) {
  for (const char* mixer : {kLatent, kGrouped}) {
    MixerUnderTest m(with_indexer(mixer, 3, R"(, "kl_loss": 2)"), 8);
    m.fill();
    expect_learns_alone(m, {7, 4});
  }
}

TEST(Indexer, Refusals) {
  const auto refused = [](const std::string& json, bool causal = true) {
    return test::error_of([&] { MixerUnderTest(json, 8, causal); });
  };
  EXPECT_THAT(refused(with_indexer(kGrouped, 3), false), ::testing::HasSubstr("causal"));
  EXPECT_THAT(refused(with_indexer(
                  std::string(kGrouped) + R"(, "pattern": {"type": "window", "width": 3})", 3)),
              ::testing::HasSubstr("expected pattern \"full\""));
  EXPECT_THAT(
      refused(with_indexer(R"({"type": "attention", "n_heads": 2, "position": "alibi")", 3)),
      ::testing::HasSubstr("expected a rotation"));
  EXPECT_THAT(refused(with_indexer(kGrouped, 3, R"(, "rotary_dim": 2)")),
              ::testing::HasSubstr("turns 4 channels"));
  EXPECT_THAT(refused(with_indexer(kGrouped, 3, R"(, "share": "a")")),
              ::testing::HasSubstr("leave them out"));
  EXPECT_THAT(refused(std::string(kGrouped) + R"(, "select": "indexer"})"),
              ::testing::HasSubstr("n_heads = 0"));
}

}  // namespace
}  // namespace tessera::nn::indexer_test
