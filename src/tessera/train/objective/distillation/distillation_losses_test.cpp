// Golden: training 1.8 and ffn_moe_norm 12.3.
#include "tessera/train/objective/distillation/distillation_losses.h"

#include "tessera/ops/ops_testing.h"

namespace tessera::train::distillation_losses_test {
namespace {

using ops::expect_near;
using ops::gen;
using ops::tensor;

Tensor teacher() {
  return tensor({1, 2, 0, 0, 1, 2, 2, 0, 0}, {3, 3});
}
Tensor student() {
  return tensor({2, 1, 0, 0, 0, 3, 1, -1, 0.5}, {3, 3});
}

Tensor rows(DistillationTerm how) {
  return divergence(student(), teacher(), how);
}

TEST(DistillationLosses, DivergencesOfLogits) {
  expect_near(rows({}), tensor({0.42051248, 0.26680451, 0.15565169}), 1e-8, "forward");
  expect_near(rows({.divergence = Divergence::reverse}),
              tensor({0.42051248, 0.17684751, 0.20689899}), 1e-8, "reverse");
  expect_near(rows({.divergence = Divergence::jsd}), tensor({0.10095571, 0.05097096, 0.04332358}),
              1e-8, "jsd");
  expect_near(rows({.temperature = 2}) / 4, tensor({0.09964225, 0.08906921, 0.05352168}), 1e-8,
              "T = 2");
  EXPECT_NEAR(rows({.temperature = 2}).mean().item<double>(), 0.32297753, 1e-8);
}

TEST(DistillationLosses, TheLikeliestClassesAndATail) {
  expect_near(rows({.top_k = 1}), tensor({0.39285879, 0.22966498, 0.10063740}), 1e-8);
  for (const Divergence kind : {Divergence::forward, Divergence::reverse, Divergence::jsd})
    expect_near(rows({.divergence = kind, .top_k = 2}), rows({.divergence = kind}), 1e-12);
}

TEST(DistillationLosses, GradientsAreThoseOfTheFormulas) {
  const double t = 2;
  Tensor s = student().requires_grad_(true);
  const auto gradient = [&](DistillationTerm how) {
    how.temperature = t;
    s.mutable_grad() = Tensor();
    divergence(s, teacher(), how).sum().backward();
    return s.grad().clone();
  };
  const Tensor p = at::softmax(teacher() / t, -1), q = at::softmax(student() / t, -1);
  expect_near(gradient({}), t * (q - p), 1e-12, "forward");
  const Tensor log = (q / p).log();
  expect_near(gradient({.divergence = Divergence::reverse}),
              t * q * (log - (q * log).sum(-1, true)), 1e-12, "reverse");
  const double b = 0.3;
  const Tensor of_m = (1 - b) * (q / (b * p + (1 - b) * q)).log();
  expect_near(gradient({.divergence = Divergence::jsd, .beta = b}),
              t * q * (of_m - (q * of_m).sum(-1, true)), 1e-12, "jsd");
}

TEST(DistillationLosses, AClassThatTheTeacherExcludesCountsForNothing) {
  Tensor t = teacher(), s = student().requires_grad_(true);
  t[0][1] = -std::numeric_limits<double>::infinity();
  for (const int64_t top_k : {0, 2}) {
    const Tensor rows = divergence(s, t, {.top_k = top_k});
    EXPECT_TRUE(at::isfinite(rows).all().item<bool>()) << rows;
    s.mutable_grad() = Tensor();
    rows.sum().backward();
    EXPECT_TRUE(at::isfinite(s.grad()).all().item<bool>()) << s.grad();
  }
}

TEST(DistillationLosses, OfHiddenStatesByAMap) {
  const Tensor mapped = at::matmul(gen({4, 2}, 0.5, 0.1), gen({3, 2}, 0.7, 0.3).t()),
               hidden = gen({4, 3}, 0.6, 0.2);
  EXPECT_NEAR(distance(mapped, hidden, HiddenDistance::mse).mean().item<double>(), 0.85480117,
              1e-8);
  EXPECT_NEAR(distance(mapped, hidden, HiddenDistance::cosine).mean().item<double>(), 0.67732049,
              1e-8);
}

/// softmax over what is visible of q k^T / sqrt 2.
Tensor weights(const Tensor& q, const Tensor& k) {
  const Tensor hidden = at::ones({3, 3}, at::kBool).triu(1);
  return at::softmax((at::matmul(q, k.t()) / std::sqrt(2.0))
                         .masked_fill(hidden, -std::numeric_limits<double>::infinity()),
                     -1)
      .unsqueeze(0);
}
Tensor of_teacher() {
  return weights(gen({3, 2}, 0.7, 0.1), gen({3, 2}, 0.5, 0.4));
}

TEST(DistillationLosses, OfAttentionWeightsAndValues) {
  const Tensor student = weights(gen({3, 2}, 0.6, 0.2), gen({3, 2}, 0.4, 0.3));
  EXPECT_NEAR(weights_divergence(student, of_teacher()).mean().item<double>(), 0.00141564, 1e-8);
  const auto relation = [](double a, double b) {
    return value_relation(gen({3, 2}, a, b).unsqueeze(1), 0);
  };
  EXPECT_NEAR(weights_divergence(relation(0.8, 0.1), relation(0.9, -0.2)).mean().item<double>(),
              0.00685233, 1e-8);
}

TEST(DistillationLosses, ValuesInOtherHeads) {
  const Tensor v = gen({4, 2, 3}, 0.9, 0.1);
  const Tensor cut = value_relation(v, 3);
  ASSERT_EQ(cut.sizes(), at::IntArrayRef({3, 4, 4}));
  expect_near(cut[1], value_relation(v.reshape({4, 6}).narrow(1, 2, 2).unsqueeze(1), 0)[0], 1e-14);
}

TEST(DistillationLosses, OfTheMatricesThatMixTokens) {
  const Tensor w = gen({2, 2}, 0.8, 0.3), v = gen({3, 2}, 0.9, -0.2);
  const auto phi = [&](const Tensor& x) {
    const Tensor y = at::matmul(x, w.t());
    return at::cat({at::softmax(y, -1), at::softmax(-y, -1)}, -1);
  };
  const Tensor scores =
      at::matmul(phi(gen({3, 2}, 0.7, 0.1)), phi(gen({3, 2}, 0.5, 0.4)).t()).tril();
  const Tensor linear = (scores / scores.sum(-1, true)).unsqueeze(0);
  expect_near(linear[0][2], tensor({0.32601509, 0.33517047, 0.33881443}), 1e-8);
  EXPECT_NEAR(
      distance(at::matmul(linear[0], v), at::matmul(of_teacher()[0], v), HiddenDistance::mse)
          .mean()
          .item<double>(),
      0.00414512, 1e-8);
  EXPECT_NEAR(weights_cross_entropy(linear, of_teacher()).mean().item<double>(), 0.59599421, 1e-8);
  EXPECT_NEAR(weights_frobenius(linear, of_teacher()).sum().item<double>(), 0.03124811, 1e-8);
}

}  // namespace
}  // namespace tessera::train::distillation_losses_test
