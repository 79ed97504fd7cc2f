#include "tessera/ops/basic/sinkhorn.h"

#include "tessera/ops/ops_testing.h"

namespace tessera::ops::sinkhorn_test {
namespace {

TEST(Sinkhorn, FastPathIsTheDefinition) {
  const Tensor z = gen({37, 4, 4}, 0.7, 0.1).to(at::kFloat) * 3;
  const Tensor exact = doubly_stochastic(z.to(at::kDouble), 20, 1e-6);
  const at::NoGradGuard fast;
  const Tensor c = doubly_stochastic(z, 20, 1e-6);
  EXPECT_LT((c.to(at::kDouble) - exact).abs().max().item<double>(), 1e-6);
  EXPECT_TRUE(at::equal(doubly_stochastic(z.narrow(0, 5, 1), 20, 1e-6), c.narrow(0, 5, 1)));
}

TEST(Sinkhorn, SumsOfColumnsAreOneAndThoseOfRowsBecomeSo) {
  const Tensor z = gen({5, 3, 3}, 0.9, 0.3) * 2;
  const auto far = [&](int64_t iterations, int64_t axis) {
    return (doubly_stochastic(z, iterations, 0).sum(axis) - 1).abs().max().item<double>();
  };
  EXPECT_LT(far(1, -2), 1e-12);
  EXPECT_LT(far(50, -1), 1e-6);
  EXPECT_GT(far(1, -1), far(5, -1));
}

}  // namespace
}  // namespace tessera::ops::sinkhorn_test
