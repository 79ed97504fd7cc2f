// Attention by torch's fused operator against the definition: values, gradients, masks by blocks.
#include "tessera/ops/attention/fused_attention.h"

#include "tessera/ops/attention/attention_form.h"
#include "tessera/ops/ops_testing.h"

namespace tessera::ops::fused_attention_test {
namespace {

struct Sizes {
  int64_t b = 2, t = 11, s = 11, h = 4, g = 2, k = 8, v = 6;
};

/// Largest difference of outputs and gradients from those of the definition, in `type`.
double difference(const Sizes& n,
                  int64_t start,
                  int64_t first,
                  const ScoreOptions& options,
                  at::ScalarType type = at::kDouble) {
  const at::AutoGradMode learning(true);
  const auto leaves = [&](at::ScalarType of) {
    const auto leaf = [&](const std::vector<int64_t>& shape, double a, double b) {
      return gen(shape, a, b).to(of).requires_grad_(true);
    };
    return std::vector<Tensor>{leaf({n.b, n.t, n.h, n.k}, 0.7371, 0.11),
                               leaf({n.b, n.s, n.g, n.k}, 1.5313, 0.29),
                               leaf({n.b, n.s, n.g, n.v}, 2.7117, 0.05)};
  };
  const std::vector<Tensor> got_from = leaves(type), want_from = leaves(at::kDouble);
  const Tensor got = fused_attention(got_from[0], got_from[1], got_from[2], start, first, options);
  const auto heads_first = [](const Tensor& x) { return x.transpose(1, 2); };
  const Tensor want = attention_plain(heads_first(want_from[0]), heads_first(want_from[1]),
                                      heads_first(want_from[2]), start, first, options)
                          .transpose(1, 2);
  EXPECT_EQ(got.scalar_type(), type);
  const Tensor seed = gen({n.b, n.t, n.h, n.v}, 0.31, 0.7);
  (got.to(at::kDouble) * seed).sum().backward();
  (want * seed).sum().backward();
  double most = (got.detach().to(at::kDouble) - want.detach()).abs().max().item<double>();
  for (size_t i = 0; i < got_from.size(); ++i)
    most = std::max(
        most,
        (got_from[i].grad().to(at::kDouble) - want_from[i].grad()).abs().max().item<double>());
  return most;
}

TEST(FusedAttention, IsTheDefinitionWithItsGradients) {
  for (const bool causal : {true, false})
    for (const int64_t window : {0, 1, 4, 40}) {
      SCOPED_TRACE(fmt::format("causal {}, window {}", causal, window));
      const ScoreOptions options{.scale = 0.6, .causal = causal, .window = window};
      EXPECT_LT(difference({}, 0, 0, options), 1e-12);
      EXPECT_LT(difference({}, 0, 0, options, at::kFloat), 1e-5);
      // tokens of a state before the queries, keys that begin late, and keys after them
      EXPECT_LT(difference({.t = 3}, 8, 0, options), 1e-12);
      EXPECT_LT(difference({.t = 1}, 10, 0, options), 1e-12);
      if (window != 1 || !causal) {
        EXPECT_LT(difference({.t = 2, .s = 9, .g = 4}, 13, 5, options), 1e-12);
      }
    }
}

TEST(FusedAttention, WindowsGoByBlocksOfQueries) {
  const Sizes n{.b = 1, .t = 700, .s = 700, .h = 2, .g = 1, .k = 4, .v = 4};
  EXPECT_LT(difference(n, 0, 0, {.causal = true, .window = 300}), 1e-11);
  EXPECT_LT(difference(n, 0, 0, {.causal = false, .window = 90}), 1e-11);
}

TEST(FusedAttention, ProductsOf16Bits) {
  for (const auto& [type, bound] :
       {std::pair(kernels::ProductType::bf16, 6e-2), {kernels::ProductType::fp16, 8e-3}}) {
    const ScoreOptions options{.scale = 0.6, .products = type};
    const double far = difference({}, 0, 0, options, at::kFloat);
    EXPECT_LT(far, bound);
    EXPECT_GT(far, 1e-5);  // they are not those of float32
  }
}

TEST(FusedAttention, QueriesThatSeeNoKey) {
  EXPECT_TRUE(every_query_sees_a_key(0, 4, 0, 4, true, 0));
  EXPECT_TRUE(every_query_sees_a_key(0, 4, 0, 4, true, 1));
  EXPECT_FALSE(every_query_sees_a_key(0, 4, 1, 4, true, 0));  // key 1 is after query 0
  EXPECT_FALSE(every_query_sees_a_key(9, 1, 0, 4, true, 3));  // the window ends before it
  EXPECT_TRUE(every_query_sees_a_key(5, 1, 0, 4, true, 3));
  EXPECT_FALSE(every_query_sees_a_key(6, 1, 0, 4, true, 3));
  EXPECT_TRUE(every_query_sees_a_key(0, 3, 5, 9, false, 0));
  EXPECT_FALSE(every_query_sees_a_key(0, 3, 5, 9, false, 8));
  EXPECT_FALSE(every_query_sees_a_key(0, 1, 0, 0, false, 0));
}

TEST(FusedAttention, ServesDevicesWithoutATerm) {
  const uint32_t there = ask::device | ask::elsewhere;
  for (const uint32_t more : {0u, uint32_t{ask::gradients}, uint32_t{ask::half}})
    EXPECT_EQ(attention_form(there | more), AttentionForm::fused);
  for (const uint32_t more :
       {uint32_t{ask::softcap}, uint32_t{ask::sinks}, uint32_t{ask::distances},
        uint32_t{ask::pattern}, uint32_t{ask::dropout}, uint32_t{ask::gaps}, uint32_t{ask::far}})
    EXPECT_EQ(attention_form(there | more), AttentionForm::definition);
  EXPECT_EQ(attention_form(ask::elsewhere), AttentionForm::definition);  // double
}

}  // namespace
}  // namespace tessera::ops::fused_attention_test
