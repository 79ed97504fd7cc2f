// Norms, activations and caps, with their gradients, against values computed independently in
// double.
#include "tessera/ops/basic/pointwise.h"

#include "tessera/ops/ops_testing.h"

namespace tessera::ops::pointwise_test {
namespace {

/// dL/dx of f for dL/dy = g
Tensor gradient(const std::function<Tensor(const Tensor&)>& f, const Tensor& x, const Tensor& g) {
  const Tensor leaf = x.clone().requires_grad_(true);
  f(leaf).backward(g);
  return leaf.grad();
}

const std::vector<double> kX = {1, 2, 3, 4}, kG = {.1, -.2, .3, .4};

TEST(Norm, GoldenLayerNorm) {
  const auto norm = [](double eps) {
    return [eps](at::ScalarType t) {
      return layer_norm(tensor(kX).to(t), at::ones(4, t), at::zeros(4, t), 0, eps);
    };
  };
  expect_both(norm(1e-5), tensor({-1.34163542, -0.44721181, 0.44721181, 1.34163542}), 1e-8);
  expect_both(norm(1e-12), tensor({-1.34164079, -0.44721360, 0.44721360, 1.34164079}), 1e-8);
}

TEST(Norm, GoldenRmsNormHasEpsInsideTheRoot) {
  const auto norm = [](double factor) {
    return [factor](at::ScalarType t) {
      return rms_norm(tensor(kX).to(t) * factor, at::ones(4, t), 0, 1e-6);
    };
  };
  expect_both(norm(1), tensor({0.36514835, 0.73029669, 1.09544504, 1.46059339}), 1e-8);
  expect_both(norm(1e-4), tensor({0.09644856, 0.19289713, 0.28934569, 0.38579426}), 1e-8);
}

TEST(Norm, GoldenWeightPlusOne) {
  expect_both(
      [](at::ScalarType t) {
        return rms_norm(tensor(kX).to(t), tensor({.1, -.2, 0, .5}).to(t), 1, 1e-6);
      },
      tensor({0.40166318, 0.58423736, 1.09544504, 2.19089008}), 1e-8);
}

TEST(Norm, GoldenGradients) {
  const Tensor x = tensor(kX), g = tensor(kG);
  const auto rms = [](const Tensor& v) { return rms_norm(v, at::ones(4, at::kDouble), 0, 1e-6); };
  const auto layer = [](const Tensor& v) {
    return layer_norm(v, at::ones(4, at::kDouble), {}, 0, 1e-5);
  };
  expect_near(gradient(rms, x, g), tensor({0.00973729, -0.12658475, 0.02921188, 0.03894917}), 1e-8);
  expect_near(gradient(layer, x, g), tensor({0.14310628, -0.25043911, 0.07155439, 0.03577845}),
              1e-8);
  // what they are orthogonal to
  EXPECT_NEAR(gradient(layer, x, g).sum().item<double>(), 0, 1e-14);
  EXPECT_NEAR((gradient(rms, x, g) * x).sum().item<double>(), 0, 1e-6);
  // a zero vector has finite gradients
  EXPECT_TRUE(at::isfinite(gradient(rms, at::zeros(4, at::kDouble), g)).all().item<bool>());
  EXPECT_TRUE(at::isfinite(gradient(layer, at::zeros(4, at::kDouble), g)).all().item<bool>());
}

TEST(Norm, GatedGolden) {
  const Tensor y = tensor({1, -2, 3, .5}, {1, 4}), z = tensor({.5, 1, -1, 2}, {1, 4});
  const auto norm = [&](int64_t groups) {
    return [&, groups](at::ScalarType t) {
      return gated_rms_norm(y.to(t), z.to(t), at::ones(4, t), groups, 1e-5).squeeze(0);
    };
  };
  expect_both(norm(1), tensor({0.32529986, -1.52821712, -0.84329949, 0.92061649}), 1e-8);
  expect_both(norm(2), tensor({0.29443487, -1.38321734, -0.95524350, 1.04282397}), 1e-8);
}

/// The gate behind the norm, as the delta rule has it.
TEST(Norm, GoldenThenGated) {
  const Tensor y = tensor({1, -2, 3, .5}), z = tensor({.5, 1, -1, 2});
  expect_both(
      [&](at::ScalarType t) {
        return gated(z.to(t), rms_norm(y.to(t), at::ones(4, t), 0, 1e-5), Activation::silu);
      },
      tensor({0.16489327, -0.77464751, -0.42746534, 0.46665704}), 1e-8);
}

TEST(Activation, GoldenValues) {
  struct Case {
    Activation kind;
    std::vector<double> want;
  };
  const Case cases[] = {
      {Activation::gelu,
       {-0.00404969, -0.15865525, -0.15426877, 0, 0.34573123, 0.84134475, 2.99595031}},
      {Activation::gelu_tanh,
       {-0.00363739, -0.15880801, -0.15428599, 0, 0.34571401, 0.84119199, 2.99636261}},
      {Activation::quick_gelu,
       {-0.01807131, -0.15420423, -0.14961156, 0, 0.35038844, 0.84579577, 2.98192869}},
      {Activation::silu,
       {-0.14227762, -0.26894142, -0.18877033, 0, 0.31122967, 0.73105858, 2.85772238}},
      {Activation::relu2, {0, 0, 0, 0, 0.25, 1, 9}},
      {Activation::relu, {0, 0, 0, 0, 0.5, 1, 3}},
      {Activation::identity, {-3, -1, -0.5, 0, 0.5, 1, 3}}};
  const Tensor x = tensor({-3, -1, -0.5, 0, 0.5, 1, 3});
  for (const Case& c : cases)
    expect_both([&](at::ScalarType t) { return activate(x.to(t), c.kind); }, tensor(c.want), 1e-8);
}

TEST(Activation, GoldenDerivatives) {
  const Tensor x = tensor({-3, -1, -0.5, 0, 0.5, 1, 3});
  const auto derivative = [&](Activation kind) {
    return gradient([&](const Tensor& v) { return activate(v, kind); }, x, at::ones_like(x));
  };
  expect_near(
      derivative(Activation::gelu),
      tensor({-0.01194565, -0.08331547, 0.13250488, 0.5, 0.86749512, 1.08331547, 1.01194565}),
      1e-8);
  expect_near(
      derivative(Activation::silu),
      tensor({-0.08810411, 0.07232949, 0.26003881, 0.5, 0.73996119, 0.92767051, 1.08810411}), 1e-8);
  expect_near(derivative(Activation::relu), tensor({0, 0, 0, 0, 1, 1, 1}), 0);
  expect_near(derivative(Activation::relu2), tensor({0, 0, 0, 0, 1, 2, 6}), 0);
  const Tensor s = at::sigmoid(1.702 * x);
  expect_near(derivative(Activation::quick_gelu), s + 1.702 * x * s * (1 - s), 1e-14);
}

TEST(Softcap, GoldenValuesAndGradients) {
  const Tensor z = tensor({1, 30, 100});
  expect_both([&](at::ScalarType t) { return softcap(z.to(t), 50); },
              tensor({0.99986669, 26.85247835, 48.20137900}), 1e-8);
  expect_both([&](at::ScalarType t) { return softcap(z.to(t), 30); },
              tensor({0.99962979, 22.84782468, 29.92373902}), 1e-8);
  expect_near(gradient([](const Tensor& v) { return softcap(v, 30); }, z, at::ones(3, at::kDouble)),
              tensor({0.99888971, 0.41997434, 0.00507760}), 1e-8);
  expect_near(softcap(z, 0), z, 0);
}

TEST(Softplus, GoldenStepSizes) {
  const Tensor raw = tensor({-1, -.5, 0, 1, -1.5, .5, -.75, -1.5});
  expect_both([&](at::ScalarType t) { return ops::softplus(raw.to(t)); },
              tensor({0.31326169, 0.47407698, 0.69314718, 1.31326169, 0.20141328, 0.97407698,
                      0.38687101, 0.20141328}),
              1e-8);
  // far from zero, where a naive form loses everything
  const at::NoGradGuard no_gradients;
  const Tensor far = ops::softplus(at::tensor(std::vector<float>{-40, 40}));
  EXPECT_NEAR(far[0].item<double>() / std::exp(-40.0), 1, 1e-6);
  EXPECT_EQ(far[1].item<float>(), 40.0f);
}

}  // namespace
}  // namespace tessera::ops::pointwise_test
