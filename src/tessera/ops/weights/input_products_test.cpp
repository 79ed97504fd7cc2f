#include "tessera/ops/weights/input_products.h"

#include "tessera/base/error.h"
#include "tessera/ops/ops_testing.h"
#include "tessera/ops/weights/weight.h"

namespace tessera::ops::input_products_test {
namespace {

Tensor floats(std::vector<int64_t> sizes, double a, double b) {
  return gen(sizes, a, b).to(at::kFloat);
}

TEST(InputProducts, AreThoseOfWhatChosenWeightsRead) {
  const at::NoGradGuard no_gradients;
  const Weight seen = Weight::dense("seen", floats({3, 24}, 0.7, 0.1)),
               other = Weight::dense("other", floats({3, 24}, 0.3, 0.2)),
               whole = Weight::dense("whole", floats({3, 24}, 0.2, 0.3)),
               idle = Weight::dense("idle", floats({3, 24}, 0.3, 0.2));
  const Weight experts = Weight::dense("experts", floats({2, 5, 24}, 0.3, 0.2));
  // more rows than are added at a time
  const Tensor x = floats({700, 24}, 0.37, 0.4), y = floats({9, 24}, 0.11, 0.9);
  InputProducts products(
      {seen.data(), whole.data(), idle.data(), experts.slice(0).data(), experts.slice(1).data()});
  linear(x, seen);
  linear(y, seen);
  linear(x, other);
  linear(x, whole, nullptr, {.whole_texts = true});
  grouped_linear(x, experts, {0, 450, 700});
  const auto expect = [&](const void* matrix, const Tensor& rows) {
    const std::vector<float> got = products.take(matrix);
    ASSERT_EQ(got.size(), 24u * 24u);
    const Tensor wide = rows.to(at::kDouble);
    const Tensor want = wide.t().matmul(wide) / static_cast<double>(rows.size(0));
    const Tensor own = at::tensor(got).reshape({24, 24}).to(at::kDouble);
    EXPECT_LT((own - want).abs().max().item<double>(), 2e-6 * want.abs().max().item<double>());
  };
  expect(seen.data(), at::cat({x, y}));
  expect(whole.data(), x);
  expect(experts.slice(0).data(), x.narrow(0, 0, 450));
  expect(experts.slice(1).data(), x.narrow(0, 450, 250));
  EXPECT_TRUE(products.take(idle.data()).empty());
  EXPECT_TRUE(products.take(other.data()).empty());
  const std::vector<const void*> none;
  EXPECT_THROW(const InputProducts second(none), Error);
}

}  // namespace
}  // namespace tessera::ops::input_products_test
