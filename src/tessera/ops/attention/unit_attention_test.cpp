// Attention without a softmax against the published numbers.
#include "tessera/ops/attention/unit_attention.h"

#include "tessera/ops/form.h"
#include "tessera/ops/ops_testing.h"

namespace tessera::ops::unit_attention_test {
namespace {

Tensor run(const Tensor& q, const Tensor& k, const Tensor& v, double n, ScoreAct act, bool causal) {
  const Tensor divisor = at::full({q.size(0)}, n, q.options());
  const UnitScores how{divisor, act, causal};
  if (kernel_serves(Op::unit_attention, q)) return unit_attention_kernel(q, {k}, {v}, how);
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

/// Values that name their token: the rows are those of A.
TEST(UnitAttention, GoldenWeights) {
  const Tensor q = tensor({1, .5, -1, 2, .5, 1}, {3, 2}), k = tensor({.5, 1, 2, -1, 1, 1}, {3, 2});
  expect_both(
      [&](at::ScalarType type) {
        return run(q.to(type), k.to(type), at::eye(3, type), 3, ScoreAct::relu2, false);
      },
      tensor({0.11111111, .25, .25, .25, 0, 0.11111111, 0.17361111, 0, .25}, {3, 3}), 6e-9);
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
          if (kernel_serves(Op::unit_attention, qt))
            return unit_attention_kernel(qt, {kt}, {vt}, how);
          return unit_attention(qt.unsqueeze(0), kt.unsqueeze(0), vt.unsqueeze(0), how).squeeze(0);
        },
        want, 1e-12);
  }
}

TEST(UnitAttention, BlocksGiveTheDefinitionAndItsGradients) {
  // several blocks of queries; a table by distance and a function, both with gradients
  const int64_t start = 5, t = 300;
  const auto leaves = [&] {
    std::vector<Tensor> x{gen({t, 3}, 1.3, 0.2), gen({start + t, 3}, 1.7, 0.4),
                          gen({start + t, 4}, 0.9, 0.1), gen({1, 9}, 0.5, 0.3),
                          gen({start + t, 2}, 0.8, 0.6)};
    for (Tensor& leaf : x) leaf.requires_grad_(true);
    return x;
  };
  const Tensor above = gen({t, 4}, 0.4, 0.7), divisor = at::arange(1, t + 1, at::kDouble) / 16;
  const auto term = [](const std::vector<Tensor>& x) {
    ScoreTerm out;
    out.bias_HR = x[3], out.zero = 6, out.inputs = {x[4]};
    out.bias = [](const ScoreBlock& block, const std::vector<Tensor>& inputs) {
      const auto rows = [&](int64_t first, int64_t n) { return inputs[0].narrow(0, first, n); };
      return at::matmul(rows(block.first_query, block.q_BHTD.size(2)),
                        rows(block.first_key, block.k_BHSD.size(2)).t())
          .unsqueeze(0)
          .unsqueeze(0);
    };
    return out;
  };
  for (const ScoreAct act : {ScoreAct::relu2, ScoreAct::laplace})
    for (const bool causal : {true, false}) {
      const auto whole = leaves(), parts = leaves();
      UnitScores how{divisor, act, causal, start};
      const Tensor y = unit_attention_blocks(parts[0], parts[1], parts[2], how, term(parts), 0.5);
      const Tensor q = whole[0].unsqueeze(0).unsqueeze(0), k = whole[1].unsqueeze(0).unsqueeze(0);
      how.bias_TS = added_by_term(term(whole), {q, k, start, 0, 0.5}).squeeze(0).squeeze(0);
      const Tensor want = unit_attention(whole[0], whole[1], whole[2], how);
      expect_near(y, want, 1e-11, "y");
      y.backward(above);
      want.backward(above);
      for (size_t i = 0; i < whole.size(); ++i)
        expect_near(parts[i].grad(), whole[i].grad(), 1e-9, std::to_string(i).c_str());
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
}  // namespace tessera::ops::unit_attention_test
