// Differential attention against the published numbers and its identities.
#include "tessera/nn/mixer/attention/differential_attention.h"

#include <cmath>

#include "tessera/nn/mixer/mixer_testing.h"

namespace tessera::nn::differential_attention_test {
namespace {

using ops::gen;

/// The mixer whose projections give q, k and v of golden G4 on unit vectors, without W_o.
MixerUnderTest golden_mixer(const std::string& extra) {
  MixerUnderTest m(
      R"({"type": "differential_attention", "n_heads": 2, "head_dim": 2)" + extra + "}", 8);
  m.scope.layer = 1;
  m.values = {{"q.weight", weight_giving(gen({3, 8}, 0.37, 0.11), 8)},
              {"k.weight", weight_giving(gen({3, 8}, 0.53, 0.29), 8)},
              {"v.weight", weight_giving(gen({3, 8}, 0.71, 0.05), 8)},
              {"o.weight", at::eye(8, at::kDouble)},
              {"lambda_q1", gen({2}, 0.3, 0.1)},
              {"lambda_k1", gen({2}, 0.3, 0.2)},
              {"lambda_q2", gen({2}, 0.3, 0.3)},
              {"lambda_k2", gen({2}, 0.3, 0.4)},
              {"norm.weight", at::ones({4}, at::kDouble)}};
  return m;
}

TEST(DifferentialAttention, GoldenG4) {
  const auto norm = std::string(R"(, "norm": {"type": "rms_norm", "eps": 1e-5})");
  const MixerUnderTest official = golden_mixer(norm),
                       halves = golden_mixer(norm + R"(, "layout": "halves")");
  const Tensor x = at::eye(8, at::kDouble).narrow(0, 0, 3);
  ops::expect_both(
      [&](at::ScalarType type) { return official.run(x, type); },
      ops::tensor({0.04404232301, 0.6070869376,   0.8767408547,  0.7226867411,  0.2261796724,
                   -0.4020502945, -0.8359789035,  -0.8658987646, -0.2694217982, 0.3646433806,
                   0.8224850744,  0.8828392675,   0.464953696,   -0.1772162553, -0.7337417997,
                   -0.9356673601, -0.4682009273,  0.1738189654,  0.7318362807,  0.936174504,
                   0.5687940732,  -0.06305493547, -0.6644309915, -0.9447033309},
                  {3, 8}),
      1e-9);
  ops::expect_both(
      [&](at::ScalarType type) { return halves.run(x, type); },
      ops::tensor(
          {0.07514632522, 1.035829841,  0.3743046647,  -0.6653528987, 0.6937234167,  0.5718277101,
           -0.6415707661, -0.664532719, -0.4915289551, 0.6882465495,  0.9528439852,  -0.1953434087,
           0.6172656707,  0.7296928917, -0.4702018852, -0.7258746702, -0.7052971953, 0.2577192238,
           1.034647328,   0.1643819626, 0.6484412443,  0.6743628683,  -0.5359581404, -0.7063700304},
          {3, 8}),
      1e-9);
}

// One token: both maps give its value, so that o = (1 - lambda_init) m v / sqrt(m^2 mean v^2 + 1)
// with m = 1 - lambda, which has one positive solution.
TEST(DifferentialAttention, GoldenLambdaOfG4) {
  const MixerUnderTest m = golden_mixer(R"(, "norm": {"type": "rms_norm", "eps": 1})");
  const Tensor x = at::eye(8, at::kDouble).narrow(0, 0, 1), o = m.run(x, at::kDouble)[0];
  const Tensor v = gen({3, 8}, 0.71, 0.05)[0];
  for (int64_t head = 0; head < 2; ++head) {
    const Tensor v_V = v.narrow(0, 4 * head, 4);
    const double r =
        o[4 * head].item<double>() / v_V[0].item<double>() / (0.2 + 0.6 * std::exp(-0.3));
    const double mean = v_V.square().mean().item<double>();
    EXPECT_NEAR(1 - std::sqrt(r * r / (1 - r * r * mean)), -0.02927576961, 1e-10) << head;
  }
}

TEST(DifferentialAttention, InitialLambdaPerLayer) {
  const MixerUnderTest m(R"({"type": "differential_attention", "n_heads": 2})", 8);
  const auto& config = m.part.as<DifferentialAttentionConfig>();
  for (const auto& [layer, want] : {std::pair<int64_t, double>{0, 0.2},
                                    {1, 0.35550907},
                                    {2, 0.47071302},
                                    {3, 0.55605820},
                                    {11, 0.77787010},
                                    {23, 0.79939533},
                                    {27, 0.79981788}})
    EXPECT_NEAR(config.initial_lambda(layer), want, 5e-9) << layer;
}

// Token by token, in the order of the definition, with shared key/value heads.
TEST(DifferentialAttention, AgainstTheDefinitionWithGroups) {
  constexpr int64_t kT = 9, kHeads = 4, kGroups = 2, kE = 3, kD = 10;
  for (const char* layout : {"paired", "halves"}) {
    MixerUnderTest m(R"({"type": "differential_attention", "n_heads": 4, "n_kv_heads": 2,
        "head_dim": 3, "lambda_init": 0.4, "norm": {"type": "rms_norm", "eps": 1e-3},
        "layout": ")" + std::string(layout) +
                         R"("})",
                     kD);
    m.fill();
    const bool halves = std::string(layout) == "halves";
    const Tensor x = gen({kT, kD}, 1.3, 0.2);
    const Tensor q = at::matmul(x, m.values["q.weight"].t()),
                 k = at::matmul(x, m.values["k.weight"].t()),
                 v = at::matmul(x, m.values["v.weight"].t());
    const auto sub = [&](int64_t head, int64_t map, int64_t heads) {
      return (halves ? map * heads + head : 2 * head + map) * kE;
    };
    const auto dot = [&](const char* a, const char* b) {
      return (m.values[a] * m.values[b]).sum().item<double>();
    };
    const double lambda =
        std::exp(dot("lambda_q1", "lambda_k1")) - std::exp(dot("lambda_q2", "lambda_k2")) + 0.4;
    Tensor heads = at::zeros({kT, kHeads * 2 * kE}, at::kDouble);
    for (int64_t h = 0; h < kHeads; ++h)
      for (int64_t i = 0; i < kT; ++i) {
        const int64_t g = h / (kHeads / kGroups);
        Tensor weights;
        for (int64_t map = 0; map < 2; ++map) {
          const Tensor qi = q[i].narrow(0, sub(h, map, kHeads), kE);
          const Tensor keys = k.narrow(0, 0, i + 1).narrow(1, sub(g, map, kGroups), kE);
          const Tensor p = at::softmax(at::mv(keys, qi) / std::sqrt(3.0), 0);
          weights = map == 0 ? p : weights - lambda * p;
        }
        const Tensor values =
            halves ? at::cat({v.narrow(1, g * kE, kE), v.narrow(1, (kGroups + g) * kE, kE)}, 1)
                   : v.narrow(1, g * 2 * kE, 2 * kE);
        const Tensor o = at::mv(values.narrow(0, 0, i + 1).t(), weights);
        const Tensor normed =
            o / at::sqrt(o.square().mean() + 1e-3) * m.values["norm.weight"] * 0.6;
        heads[i].narrow(0, h * 2 * kE, 2 * kE).copy_(normed);
      }
    const Tensor want = at::matmul(heads, m.values["o.weight"].t());
    ops::expect_both([&](at::ScalarType type) { return m.run(x, type); }, want, 1e-12);
    ops::expect_both(
        [&](at::ScalarType type) {
          return m.run(x, type, {4, 1, 3, 1});
        },
        want, 1e-12);
  }
}

}  // namespace
}  // namespace tessera::nn::differential_attention_test
