// The short convolution of documents: values of the specification, and its kernels with gradients
// against the plain form in double.
#include "tessera/ops/convolution/short_conv.h"

#include "tessera/ops/ops_testing.h"

namespace tessera::ops::short_conv_test {
namespace {

TEST(CausalConv, Golden) {
  const Tensor x = tensor({1, 2, 3, 4}, {1, 4, 1}), w = tensor({.1, .2, .3, .4}, {1, 4}),
               b = tensor({.05});
  const Tensor want = tensor({.45, 1.15, 2.05, 3.05}, {1, 4, 1}),
               activated = tensor({0.27478766, 0.87343755, 1.81619262, 2.91208671}, {4, 1});
  expect_near(causal_conv(x, w, b), want, 1e-14);
  for (int64_t cut = 1; cut < 4; ++cut) {  // the tail carries what came before
    const Tensor tail =
        at::cat({at::zeros({1, 3, 1}, at::kDouble), x.narrow(1, 0, cut)}, 1).narrow(1, cut, 3);
    expect_near(causal_conv(x.narrow(1, cut, 4 - cut), w, b, tail), want.narrow(1, cut, 4 - cut),
                1e-14);
  }
  const at::NoGradGuard no_gradients;
  const Tensor xf = x.to(at::kFloat).squeeze(0), wf = w.to(at::kFloat), bf = b.to(at::kFloat);
  for (int64_t cut = 0; cut <= 4; ++cut) {
    Tensor tail = at::zeros({3, 1});
    const Tensor y1 =
        causal_conv_kernel(xf.narrow(0, 0, cut), wf, bf, tail, kernels::Activation::silu);
    const Tensor y2 =
        causal_conv_kernel(xf.narrow(0, cut, 4 - cut), wf, bf, tail, kernels::Activation::silu);
    expect_near(at::cat({y1, y2}), activated, 2e-6);
    expect_near(tail, tensor({2, 3, 4}, {3, 1}), 0);
  }
}

TEST(ShortConv, GoldenForEveryDocument) {
  const Tensor x = tensor({1, 2, 3, 4}, {4, 1}), w = tensor({.1, .2, .3, .4}, {1, 4}),
               b = tensor({.05});
  const Tensor want = tensor({.45, 1.15, 2.05, 3.05}, {4, 1}),
               activated = tensor({0.27478766, 0.87343755, 1.81619262, 2.91208671}, {4, 1});
  const auto run = [&](at::ScalarType type, kernels::Activation act) {
    // a short document between two equal ones
    const Tensor all = at::cat({x, x.narrow(0, 0, 2), x}).to(type);
    return short_conv(all, w.to(type), b.to(type), act, {4, 2, 4});
  };
  for (const auto& [type, tolerance] : {std::pair{at::kDouble, 1e-8}, {at::kFloat, 1e-6}}) {
    expect_near(run(type, kernels::Activation::identity),
                at::cat({want, want.narrow(0, 0, 2), want}), tolerance);
    expect_near(run(type, kernels::Activation::silu),
                at::cat({activated, activated.narrow(0, 0, 2), activated}), tolerance);
  }
}

TEST(ShortConv, KernelGradientsAgainstThePlainForm) {
  constexpr int64_t kT = 46, kC = 70;
  for (const auto act : {kernels::Activation::identity, kernels::Activation::silu})
    for (const int64_t taps : {1, 4}) {
      const auto leaves = [&](at::ScalarType type) {
        std::vector<Tensor> out{gen({kT, kC}, .7, .1), gen({kC, taps}, .31, 2), gen({kC}, .9, 0)};
        for (Tensor& leaf : out) leaf = leaf.to(type).requires_grad_(true);
        return out;
      };
      const auto run = [&](const std::vector<Tensor>& l) {
        const Tensor y = short_conv(l[0], l[1], l[2], act, {5, 1, 40});
        y.backward(gen({kT, kC}, .19, .5).to(y.scalar_type()));
        return y;
      };
      const auto want = leaves(at::kDouble), got = leaves(at::kFloat);
      expect_near(run(got), run(want), 4e-6);
      for (size_t i = 0; i < got.size(); ++i)
        expect_near(got[i].grad(), want[i].grad(), 1e-5, std::to_string(i).c_str());
    }
}

}  // namespace
}  // namespace tessera::ops::short_conv_test
