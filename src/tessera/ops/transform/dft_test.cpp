// The transform against its definition, with gradients of gradients.
#include "tessera/ops/transform/dft.h"

#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "tessera/ops/ops_testing.h"

namespace tessera::ops::dft_test {
namespace {

/// The definition: cosines of all pairs of times and channels.
Tensor definition(const Tensor& x_TD) {
  const int64_t t = x_TD.size(-2), d = x_TD.size(-1);
  const auto turns = [](int64_t n) {
    const Tensor i = at::arange(n, at::kDouble);
    return i.unsqueeze(1) * i / static_cast<double>(n);
  };
  const double turn = 2 * std::acos(-1.0);
  const Tensor phase = turn * (turns(t).reshape({t, 1, t, 1}) + turns(d).reshape({1, d, 1, d}));
  return at::matmul(phase.cos().reshape({t * d, t * d}), x_TD.reshape({-1, t * d, 1}))
      .reshape(x_TD.sizes());
}

TEST(RealDft, ValuesAndGradientsOfTheDefinition) {
  for (const int64_t t : {1, 2, 5, 8, 33})
    for (const int64_t d : {1, 2, 3, 6, 7}) {
      SCOPED_TRACE(fmt::format("{} x {}", t, d));
      const Tensor weights = gen({3, t, d}, 0.29, 0.1);
      Tensor gradients[2];
      for (const bool plain : {false, true}) {
        const Tensor x = gen({3, t, d}, 0.37, 0.2).requires_grad_(true);
        const Tensor y = plain ? definition(x) : real_dft(x);
        if (!plain) expect_near(y, definition(x), 1e-11);
        // of y^2, so that the gradient has a gradient of its own
        const Tensor dx = torch::autograd::grad({(y * y * weights).sum()}, {x}, {}, true, true)[0];
        dx.square().sum().backward();
        gradients[plain] = at::stack({dx.detach(), x.grad()});
      }
      const double largest = gradients[1].abs().max().item<double>();
      expect_near(gradients[0], gradients[1], 1e-12 * std::max(1.0, largest));
    }
  const Tensor x = gen({6, 4}, 0.37, 0.2);
  expect_near(real_dft(x.to(at::kFloat)), definition(x), 1e-5);
}

}  // namespace
}  // namespace tessera::ops::dft_test
