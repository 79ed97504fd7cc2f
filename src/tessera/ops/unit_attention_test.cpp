// Attention without a softmax against the published numbers.
#include "tessera/ops/unit_attention.h"

#include "tessera/ops/ops_testing.h"

namespace tessera::ops {
namespace {

Tensor run(const Tensor& q, const Tensor& k, const Tensor& v, double n, ScoreAct act, bool causal) {
  const Tensor divisor = at::full({q.size(0)}, n, q.options());
  const UnitScores how{divisor, act, causal};
  if (use_kernels(q)) return unit_attention_kernel(q, {k}, {v}, how);
  return unit_attention(q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0), how).squeeze(0);
}

TEST(UnitAttention, GoldenG6) {
  const Tensor z = gen({3, 2}, 0.9, 0.3), gamma = gen({2, 2}, 0.7, 1.1),
               beta = gen({2, 2}, 0.5, 0.2), u = gen({3, 3}, 0.33, 0.6), v = gen({3, 3}, 0.27, 0.9);
  const auto gau = [&](bool causal) {
    return [&, causal](at::ScalarType type) {
      const auto affine = [&](int64_t row) { return (z * gamma[row] + beta[row]).to(type); };
      return u.to(type) * run(affine(0), affine(1), v.to(type), 3, ScoreAct::relu2, causal);
    };
  };
  expect_both(gau(false),
              tensor({0.6173114687, 0.8183713195, 0.8326439161, 0.9157863327, 0.828034128,
                      0.6089454739, 0, 0, 0},
                     {3, 3}),
              1e-9);
  expect_both(gau(true),
              tensor({0.1901186236, 0.3172623913, 0.4057520337, 0.8023246933, 0.764970577,
                      0.5965874503, 0, 0, 0},
                     {3, 3}),
              1e-9);
}

TEST(UnitAttention, GoldenWithExactFractions) {
  const Tensor q = tensor({1, .5, -1, 2, .5, 1}, {3, 2}), k = tensor({.5, 1, 2, -1, 1, 1}, {3, 2}),
               v = tensor({1, 2, .5, -1, 3, 1}, {3, 2}), u = tensor({1, .5, 2, -1, .5, 1}, {3, 2});
  const auto gau = [&](bool causal) {
    return [&, causal](at::ScalarType type) {
      return u.to(type) * run(q.to(type), k.to(type), v.to(type), 3, ScoreAct::relu2, causal);
    };
  };
  expect_both(
      gau(false),
      tensor({0.98611111, 0.11111111, 1.16666667, -0.61111111, 0.46180556, 0.59722222}, {3, 2}),
      6e-9);
  expect_both(gau(true),
              tensor({0.11111111, 0.11111111, 0.5, -0.5, 0.46180556, 0.59722222}, {3, 2}), 6e-9);
}

TEST(UnitAttention, LongInputsAgainstTheDefinition) {
  // several blocks of queries, after keys that came before
  for (const auto& [act, biased] :
       {std::pair{ScoreAct::relu2, false}, std::pair{ScoreAct::laplace, false},
        std::pair{ScoreAct::relu2, true}}) {
    const int64_t start = 7, t = 70;
    const Tensor bias = gen({t, start + t}, 0.83, 0.3) * 0.4;
    const Tensor q = gen({t, 5}, 1.3, 0.2) * 2, k = gen({start + t, 5}, 1.7, 0.4) * 2,
                 v = gen({start + t, 9}, 0.9, 0.1), divisor = at::arange(1, t + 1, at::kDouble);
    Tensor want = at::zeros({t, 9}, at::kDouble);
    for (int64_t i = 0; i < t; ++i)
      for (int64_t j = 0; j <= start + i; ++j) {
        const double x = (q[i] * k[j]).sum().item<double>() / static_cast<double>(i + 1) +
                         (biased ? bias[i][j].item<double>() : 0);
        const double a =
            act == ScoreAct::relu2
                ? std::pow(std::max(x, 0.0), 2)
                : 0.5 * (1 + std::erf((x - std::sqrt(0.5)) /
                                      (std::sqrt(1 / (4 * 3.141592653589793)) * std::sqrt(2.0))));
        want[i] += a * v[j];
      }
    expect_both(
        [&, act = act, biased = biased](at::ScalarType type) {
          const Tensor qt = q.to(type), kt = k.to(type), vt = v.to(type);
          UnitScores how{divisor.to(type), act, true, start};
          if (biased) how.bias_TS = bias.to(type);
          if (use_kernels(qt)) return unit_attention_kernel(qt, {kt}, {vt}, how);
          return unit_attention(qt.unsqueeze(0), kt.unsqueeze(0), vt.unsqueeze(0), how).squeeze(0);
        },
        want, 1e-12);
  }
}

TEST(UnitAttention, PagesGiveTheBitsOfOnePiece) {
  const at::NoGradGuard no_gradients;
  const int64_t start = 90, t = 70;
  const Tensor q = gen({t, 5}, 1.3, 0.2).to(at::kFloat),
               k = gen({start + t, 5}, 1.7, 0.4).to(at::kFloat),
               v = gen({start + t, 9}, 1.1, 0.1).to(at::kFloat);
  for (const bool causal : {true, false}) {
    const UnitScores how{at::full({t}, 2.5f), ScoreAct::relu2, causal, start};
    const Tensor whole = unit_attention_kernel(q, {k}, {v}, how);
    const std::vector<int64_t> pages = {1, 64, 64, start + t - 129};
    EXPECT_TRUE(at::equal(
        unit_attention_kernel(q, k.split_with_sizes(pages), v.split_with_sizes(pages), how),
        whole));
  }
}

}  // namespace
}  // namespace tessera::ops
