// Merging partial attention: any partition of the keys gives what all keys give.
#include "tessera/ops/attention/attention_merge.h"

#include "tessera/ops/ops_testing.h"

namespace tessera::ops::attention_merge_test {
namespace {

/// Attention of row 3 of the golden core over keys [from, to), from the formula.
PartialAttention part(int64_t from, int64_t to) {
  const Tensor q = gen({4, 2}, 0.7, 0.1)[3], k = gen({4, 2}, 0.5, 0.3).narrow(0, from, to - from),
               v = gen({4, 2}, 0.9, 0.2).narrow(0, from, to - from);
  const Tensor s = at::mv(k, q) / std::sqrt(2.0);
  return {at::mv(v.t(), at::softmax(s, 0)), at::logsumexp(s, 0)};
}

void expect_same(const PartialAttention& a, const PartialAttention& b, double tolerance = 1e-14) {
  expect_near(a.out, b.out, tolerance);
  if (!at::equal(a.lse, b.lse)) expect_near(a.lse, b.lse, tolerance);  // infinities are equal
}

TEST(AttentionMerge, GoldenHalves) {
  const PartialAttention whole = attention_merge(part(0, 2), part(2, 4));
  expect_near(whole.out, tensor({-0.3409657827, 0.1313776331}), 1e-9);
  EXPECT_NEAR(whole.lse.item<double>(), 1.0828606798, 1e-9);
}

TEST(AttentionMerge, IsAssociativeAndCommutativeWithAnIdentity) {
  const PartialAttention a = part(0, 1), b = part(1, 3), c = part(3, 4);
  expect_same(attention_merge(attention_merge(a, b), c), attention_merge(a, attention_merge(b, c)));
  expect_same(attention_merge(a, b), attention_merge(b, a));
  expect_same(attention_merge(attention_merge(c, a), b), part(0, 4), 1e-13);
  const PartialAttention nothing{
      at::zeros({2}, at::kDouble),
      at::full({}, -std::numeric_limits<double>::infinity(), at::kDouble)};
  expect_same(attention_merge(a, nothing), a);
  expect_same(attention_merge(nothing, a), a);
  expect_same(attention_merge(nothing, nothing), nothing);
}

TEST(AttentionMerge, GradientsAreThoseOfAllKeysAtOnce) {
  const auto scores = [](bool split) {
    const Tensor s = gen({3, 5}, 0.9, 0.4).requires_grad_(true),
                 v = gen({5, 2}, 0.7, 0.2).requires_grad_(true);
    const auto of = [&](int64_t from, int64_t n) {
      const Tensor x = s.narrow(1, from, n);
      return PartialAttention{at::matmul(at::softmax(x, -1), v.narrow(0, from, n)),
                              at::logsumexp(x, -1)};
    };
    const PartialAttention all = split ? attention_merge(of(0, 2), of(2, 3)) : of(0, 5);
    ((all.out * gen({3, 2}, 0.5, 0.1)).sum() + (all.lse * gen({3}, 1.1, 0.6)).sum()).backward();
    return std::pair{s.grad(), v.grad()};
  };
  const auto [s, v] = scores(true);
  const auto [want_s, want_v] = scores(false);
  expect_near(s, want_s, 1e-14);
  expect_near(v, want_v, 1e-14);
}

TEST(AttentionMerge, EmptyPartsPassNoGradientAndNoNan) {
  Tensor out = at::zeros({2, 3}, at::kDouble).requires_grad_(true);
  Tensor lse = at::full({2}, -std::numeric_limits<double>::infinity(), at::kDouble);
  Tensor other = gen({2, 3}, 0.4, 0.1).requires_grad_(true);
  Tensor other_lse =
      tensor({0.3, -std::numeric_limits<double>::infinity()}, {2}).requires_grad_(true);
  const PartialAttention all = attention_merge({out, lse}, {other, other_lse});
  all.out.sum().backward();
  EXPECT_TRUE(at::isfinite(all.out).all().item<bool>());
  for (const Tensor& x : {out, other, other_lse})
    EXPECT_TRUE(at::isfinite(x.grad()).all().item<bool>());
  expect_near(other.grad()[0], at::ones({3}, at::kDouble), 1e-15);
}

}  // namespace
}  // namespace tessera::ops::attention_merge_test
