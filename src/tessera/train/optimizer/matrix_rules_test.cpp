// Goldens: torch.optim.Muon without its cast to 16 bits, in float64 (additions.md 8 of the
// specification); SOAP and Shampoo: tools/golden/optimizers.py. On W = gen(2,3; 0.5, 0.1) and
// G_t = gen(2,3; 0.7, t), where element n of gen(shape; a, b) is sin(a n + b).
#include <gtest/gtest.h>

#include "tessera/train/optimizer/muon.h"
#include "tessera/train/optimizer/shampoo.h"

namespace tessera::train::matrix_rules_test {
namespace {

Tensor gen(const std::vector<int64_t>& shape, double a, double b) {
  return (at::arange(at::zeros(shape).numel(), at::kDouble) * a + b)
      .sin()
      .to(at::kFloat)
      .reshape(shape);
}

std::vector<ParameterInfo> slots() {
  return {{.name = "w", .shape = {2, 3}, .weight_decay = 0.1}};
}

/// `turning`: each gradient of a frequency of its own, so that they leave no direction out.
Tensor after(UpdateRule& rule, double lr, int64_t steps, bool turning = false) {
  Tensor w = gen({2, 3}, 0.5, 0.1);
  for (int64_t t = 1; t <= steps; ++t) {
    const auto number = static_cast<double>(t);
    const Tensor g = gen({2, 3}, turning ? 0.7 * number : 0.7, number);
    rule.update(std::vector<Parameter>{{w.mutable_data_ptr<float>(), g.const_data_ptr<float>()}},
                {t, lr, 1});
  }
  return w;
}

void expect_near(const Tensor& found, const std::vector<double>& want, double bound) {
  const Tensor difference =
      (found.reshape({-1}).to(at::kDouble) - at::tensor(want, at::kDouble)).abs().max();
  EXPECT_LT(difference.item<double>(), bound) << found;
}

TEST(Muon, OrthogonalisesAsPublished) {
  const std::vector<double> want{0.71912538, 0.48003143,  0.01517119,
                                 0.51757923, -0.18003849, -0.79298130};
  const Tensor g = gen({2, 3}, 0.7, 1);
  expect_near(orthogonalised(g, 5), want, 1e-6);
  expect_near(orthogonalised(g.t(), 5).t(), want, 1e-6);
  // of three dimensions each matrix by itself
  const Tensor both = at::stack({g, 3 * g});
  expect_near(orthogonalised(both, 5)[1], want, 1e-6);
}

TEST(Muon, AgainstTorchInDouble) {
  Muon original(slots(), {});
  expect_near(after(original, 0.02, 3),
              {0.05780503, 0.54941535, 0.90918068, 0.99130528, 0.88166064, 0.55082884}, 1e-6);
  Muon matched(slots(), {.scale = MuonScale::match_rms_adamw});
  expect_near(after(matched, 0.02, 3),
              {0.08488364, 0.55715780, 0.89394558, 0.99279734, 0.86622273, 0.52572165}, 1e-6);
}

TEST(Soap, AgainstItsFormula) {
  Soap soap(slots(), {.betas = {0.9, 0.95}, .eps = 1e-8, .every = 2});
  expect_near(after(soap, 0.01, 5, true),
              {0.08344863, 0.57607594, 0.89973333, 0.99617828, 0.82784890, 0.50134584}, 1e-5);
}

TEST(Shampoo, AgainstItsFormula) {
  ShampooKeys keys{.betas = {0.9, 0.95}, .eps = 1e-8, .every = 2};
  Shampoo grafted(slots(), keys);
  expect_near(after(grafted, 0.01, 3),
              {0.06435854, 0.54383840, 0.89447701, 0.99819327, 0.88348135, 0.54730812}, 1e-5);
  keys.graft = Graft::none;
  Shampoo bare(slots(), keys);
  expect_near(after(bare, 0.01, 3),
              {0.07915190, 0.55182967, 0.89190776, 0.99739076, 0.87380488, 0.53330867}, 1e-5);
}

TEST(Soap, ASideTooLongHasNoBasis) {
  Soap soap(slots(), {.largest = 2});
  for (const RuleState& state : soap.state()) EXPECT_FALSE(state.name.starts_with("right_"));
  EXPECT_TRUE(at::isfinite(after(soap, 0.01, 5)).all().item<bool>());
}

}  // namespace
}  // namespace tessera::train::matrix_rules_test
