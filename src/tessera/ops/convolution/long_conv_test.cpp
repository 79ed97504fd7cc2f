// The long convolution continued from past inputs: every path against the sum in double.
#include "tessera/ops/convolution/long_conv.h"

#include "tessera/ops/ops_testing.h"

namespace tessera::ops::long_conv_test {
namespace {

constexpr int64_t kT = 40, kH = 5;

Tensor direct(const Tensor& z, const Tensor& k) {
  std::vector<Tensor> out;
  for (int64_t t = 0; t < z.size(0); ++t)
    out.push_back((k.narrow(0, 0, t + 1).flip(0) * z.narrow(0, 0, t + 1)).sum(0));
  return at::stack(out);
}

TEST(LongConv, AnyCallsAndPiecesAgainstTheSum) {
  const Tensor z = gen({kT, kH}, .7, .1), k = gen({kT + 3, kH}, .3, .4), want = direct(z, k);
  const auto expect_calls = [&](at::ScalarType type, double tolerance) {
    for (const int64_t n : {1, 3, 13, 40})
      for (const int64_t piece : {7, 40})
        for (int64_t start = 0; start < kT; start += n) {
          const int64_t tokens = std::min(n, kT - start);
          const Tensor y =
              long_conv(z.narrow(0, 0, start + tokens).to(type).split(piece), k.to(type), tokens);
          EXPECT_EQ(y.scalar_type(), type == at::kBFloat16 ? at::kFloat : type);
          expect_near(y, want.narrow(0, start, tokens), tolerance);
        }
  };
  expect_calls(at::kDouble, 1e-13);
  expect_calls(at::kFloat, 1e-5);
  const at::NoGradGuard no_gradients;
  expect_calls(at::kFloat, 1e-5);
}

TEST(LongConv, GradientsReachInputsAndFilter) {
  const auto leaf = [](const Tensor& x) { return x.clone().requires_grad_(true); };
  const Tensor r = gen({kT, kH}, .19, .5);
  const Tensor z0 = leaf(gen({kT, kH}, .7, .1)), k0 = leaf(gen({kT, kH}, .3, .4));
  (direct(z0, k0) * r).sum().backward();
  for (const int64_t n : {1, 3, 13}) {
    const Tensor z = leaf(z0.detach()), k = leaf(k0.detach());
    std::vector<Tensor> out;
    for (int64_t start = 0; start < kT; start += n) {
      const int64_t tokens = std::min(n, kT - start);
      out.push_back(long_conv({z.narrow(0, 0, start + tokens)}, k, tokens));
    }
    (at::cat(out) * r).sum().backward();
    expect_near(z.grad(), z0.grad(), 1e-12);
    expect_near(k.grad(), k0.grad(), 1e-12);
  }
}

}  // namespace
}  // namespace tessera::ops::long_conv_test
