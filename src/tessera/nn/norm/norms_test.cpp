// Norms against torch in float64 (tools/golden/norms.py) and the specification's numbers.
#include <gtest/gtest.h>

#include "tessera/base/testing.h"
#include "tessera/nn/context.h"
#include "tessera/nn/registry.h"
#include "tessera/nn/weights_testing.h"

namespace tessera::nn::norms_test {
namespace {

using ops::gen;
using ops::tensor;

spec::Scope scope_of(int64_t width) {
  spec::Scope scope;
  scope.d_model = scope.width = width;
  scope.causal = false;
  return scope;
}

spec::AnyPart part_of(const char* json, int64_t width) {
  register_mechanisms();
  return spec::read_part(spec::Slot::norm, spec::parse_json(json, "test"), scope_of(width));
}

/// Values and kernel of a norm on x, and the gradient of sum(y g) where `dx` is given.
void expect_golden(const char* json,
                   const Values& values,
                   const Tensor& x,
                   const Tensor& want,
                   const Tensor& g = {},
                   const Tensor& dx = {}) {
  SCOPED_TRACE(json);
  const auto part = part_of(json, x.size(-1));
  const auto run = [&](at::ScalarType type, const Tensor& input) {
    return build_norm(part, Builder(weights_from(values, type), "", scope_of(x.size(-1))))
        ->forward(input.to(type), ops::ProductSettings());
  };
  ops::expect_both([&](at::ScalarType type) { return run(type, x); }, want, 2e-8);
  if (!dx.defined()) return;
  const Tensor leaf = x.clone().requires_grad_(true);
  (run(at::kDouble, leaf) * g).sum().backward();
  ops::expect_near(leaf.grad(), dx, 2e-8, "dx");
}

TEST(Norms, LayerNormInAllStoredForms) {
  // specification 3.4, and torch for the forms with parameters
  const Tensor x = tensor({1, 2, 3, 4}, {1, 4});
  const Tensor plain = tensor({-1.34163542, -0.44721181, 0.44721181, 1.34163542}, {1, 4});
  const Tensor w = tensor({.1, -.2, 0, .5}), b = tensor({.3, 0, -.1, .2});
  expect_golden(R"({"type": "layer_norm", "weight": "none", "bias": false})", {}, x, plain);
  expect_golden(R"({"type": "layer_norm", "bias": false})", {{"weight", w}}, x, plain * w);
  expect_golden(R"({"type": "layer_norm"})", {{"weight", w}, {"bias", b}}, x, plain * w + b);
  expect_golden(R"({"type": "layer_norm", "weight": "plus_one"})", {{"weight", w}, {"bias", b}}, x,
                plain * (1 + w) + b);
}

TEST(Norms, AffineIsAFactorAndAnOffset) {
  const Tensor x = tensor({1, 2, 3, 4, 5, 6}, {2, 3}), w = tensor({.1, -.2, .5}),
               b = tensor({.3, 0, -.1});
  expect_golden(R"({"type": "affine"})", {{"weight", w}, {"bias", b}}, x,
                tensor({.4, -.4, 1.4, .7, -1, 2.9}, {2, 3}));
}

TEST(Norms, GroupNormIsTorchs) {
  const Values values = {{"weight", 1 + 0.2 * gen({6}, 0.5, 0.1)},
                         {"bias", 0.3 * gen({6}, 0.9, 0.2)}};
  const Tensor x = 2 * gen({2, 6}, 0.7, 0.3) + 0.4;
  expect_golden(R"({"type": "group_norm", "groups": 2})", values, x,
                tensor({-1.35219798, 0.75818835, 1.38403529, 1.53385971, -0.16901299, -1.65777623,
                        -0.83492211, -0.31388341, 1.92147742, -1.59289581, 0.35123703, 0.72730133},
                       {2, 6}),
                gen({2, 6}, 0.4, 0.6),
                tensor({0.02133051, -0.09893252, 0.077602, -0.02411754, 0.04751839, -0.02340085,
                        0.26901824, -0.31864849, 0.04963025, 0.02301518, -0.11228717, 0.08927199},
                       {2, 6}));
  // one group is layer norm
  const auto norm = [&](const char* json) {
    return build_norm(part_of(json, 6), Builder(weights_from(values), "", scope_of(6)))
        ->forward(x, ops::ProductSettings());
  };
  ops::expect_near(norm(R"({"type": "group_norm"})"), norm(R"({"type": "layer_norm"})"), 1e-14);
}

struct BatchNormUnderTest {
  const char* json;
  Values values;
  spec::AnyPart part;
  std::unique_ptr<Norm> norm;
  BatchNormUnderTest(const char* config, Values with, at::ScalarType type = at::kDouble)
      : json(config), values(std::move(with)) {
    register_mechanisms();
    spec::Scope scope = scope_of(4);
    scope.of_batch = true;
    part = spec::read_part(spec::Slot::norm, spec::parse_json(json, "test"), scope);
    norm = build_norm(part, Builder(weights_from(values, type), "n", scope));
  }
};

Values batch_norm_values() {
  return {{"n.weight", 1 + 0.2 * gen({4}, 0.5, 0.1)},
          {"n.bias", 0.3 * gen({4}, 0.9, 0.2)},
          {"n.running_mean", 0.4 * gen({4}, 0.3, 0.8)},
          {"n.running_var", 1.5 + gen({4}, 0.6, 0.4)}};
}

TEST(Norms, BatchNormIsTorchs) {
  const Values v = batch_norm_values();
  const Tensor x = 2 * gen({7, 4}, 0.7, 0.3) + 0.4, g = gen({7, 4}, 0.4, 0.6);
  for (const bool training : {false, true})
    for (const auto type : {at::kDouble, at::kFloat}) {
      SCOPED_TRACE(training);
      const BatchNormUnderTest own(R"({"type": "batch_norm", "eps": 1e-3})", v, type);
      Context context;
      context.training = training;
      const Tensor a = x.to(type).clone().requires_grad_(true);
      const Tensor y = own.norm->forward(a, context);
      (y * g.to(type)).sum().backward();
      const Tensor b = x.clone().requires_grad_(true);
      const Tensor want =
          at::batch_norm(b, v.at("n.weight"), v.at("n.bias"), v.at("n.running_mean").clone(),
                         v.at("n.running_var").clone(), training, 0.1, 1e-3, false);
      (want * g).sum().backward();
      const double tolerance = type == at::kDouble ? 1e-12 : 3e-6;
      ops::expect_near(y.to(at::kDouble), want, tolerance, "y");
      ops::expect_near(a.grad().to(at::kDouble), b.grad(), tolerance, "dx");
    }
}

TEST(Norms, BatchNormRunsAfterTheTokensOfAnUpdate) {
  const Values v = batch_norm_values();
  const Tensor x = 2 * gen({7, 4}, 0.7, 0.3) + 0.4;
  const BatchNormUnderTest own(R"({"type": "batch_norm", "momentum": 0.3})", v);
  // two calls of one update: torch sees both at once
  Tensor counts;
  Context context;
  context.training = true;
  context.add_statistic = [&](const std::string& name, const Tensor& value) {
    EXPECT_EQ(name, "n.moments");
    counts = counts.defined() ? counts + value : value;
  };
  own.norm->forward(x.narrow(0, 0, 3), context);
  own.norm->forward(x.narrow(0, 3, 4), context);
  Tensor mean = v.at("n.running_mean").clone(), var = v.at("n.running_var").clone();
  at::batch_norm(x, {}, {}, mean, var, true, 0.3, 1e-5, false);

  spec::Scope scope = scope_of(4);
  scope.of_batch = true;
  spec::ParamList list("n");
  own.part.config->params(list, scope);
  int ruled = 0;
  for (const spec::ParamDecl& decl : list.all()) {
    if (!decl.rule) continue;
    ++ruled;
    EXPECT_FALSE(decl.trainable || decl.decays());
    EXPECT_EQ(decl.rule.statistic, "n.moments");
    EXPECT_EQ(decl.rule.n_counts, counts.numel());
    Tensor values = v.at(decl.name).to(at::kFloat).clone();
    decl.rule.apply({values.data_ptr<float>(), 4}, {counts.data_ptr<double>(), 9});
    ops::expect_near(values.to(at::kDouble), decl.name == "n.running_mean" ? mean : var, 1e-6,
                     decl.name.c_str());
  }
  EXPECT_EQ(ruled, 2);
}

TEST(Norms, BatchNormStandsWhereABatchIs) {
  register_mechanisms();
  const auto refusal = [](bool causal, bool of_batch, const char* json) {
    spec::Scope scope = scope_of(4);
    scope.causal = causal;
    scope.of_batch = of_batch;
    return test::error_of(
        [&] { spec::read_part(spec::Slot::norm, spec::parse_json(json, "test"), scope); });
  };
  EXPECT_NE(refusal(true, true, R"("batch_norm")").find("needs an encoder"), std::string::npos);
  EXPECT_NE(refusal(false, false, R"("batch_norm")").find("inside a part"), std::string::npos);
  EXPECT_NE(refusal(false, true, R"({"type": "batch_norm", "momentum": 1.5})").find("at most 1"),
            std::string::npos);
  EXPECT_EQ(refusal(false, true, R"("batch_norm")"), "");
  // the variance of one token is none
  const BatchNormUnderTest own(R"("batch_norm")", batch_norm_values());
  Context context;
  context.training = true;
  EXPECT_NE(test::error_of([&] { own.norm->forward(at::zeros({1, 4}, at::kDouble), context); })
                .find("one token"),
            std::string::npos);
}

TEST(Norms, GatedNormIsItsFormula) {
  const Values values = {{"weight", 1 + 0.2 * gen({4}, 0.5, 0.1)},
                         {"down.weight", gen({2, 4}, 0.6, 0.2)},
                         {"up.weight", gen({4, 2}, 0.8, 0.5)}};
  expect_golden(R"({"type": "gated_norm", "rank": 2})", values, 2 * gen({2, 4}, 0.7, 0.3) + 0.4,
                tensor({0.43024521, 1.16922465, 0.26390313, 0.06604855, 0.3929721, -0.49846418,
                        -0.14239255, -0.59373415},
                       {2, 4}),
                gen({2, 4}, 0.4, 0.6),
                tensor({0.15465483, 0.25458503, -0.15754993, -0.17594187, 0.64611689, 0.34650364,
                        0.07156071, -0.06183524},
                       {2, 4}));
}

// specification, additions 6.3
TEST(Norms, DytGolden) {
  const Tensor x = tensor({-2, -.5, 0, 1.5}, {1, 4}), g = tensor({.1, -.2, .3, .4}, {1, 4});
  Values values = {{"alpha", tensor({.7})},
                   {"weight", tensor({1, .9, 1.1, 1.2})},
                   {"bias", tensor({0, .1, -.1, .2})}};
  const Tensor dx = tensor({0.01513067, -0.11174329, 0.23100000, 0.13062968}, {1, 4});
  expect_golden(R"({"type": "dyt"})", values, x,
                tensor({-0.88535165, -0.20273799, -0.10000000, 1.13816763}, {1, 4}), g, dx);
  for (auto& [name, value] : values) value.requires_grad_(true);
  const auto norm =
      build_norm(part_of(R"({"type": "dyt"})", 4), Builder(weights_from(values), "", scope_of(4)));
  (norm->forward(x, ops::ProductSettings()) * g).sum().backward();
  ops::expect_near(values["alpha"].grad(), tensor({0.31650689}), 2e-8);
  ops::expect_near(values["weight"].grad(),
                   tensor({-0.08853516, 0.06727511, 0.00000000, 0.31272254}), 2e-8);
  ops::expect_near(values["bias"].grad(), g.squeeze(0), 1e-12);
}

// a row's bits hang on that row alone
TEST(Norms, RowsStandAlone) {
  const at::NoGradGuard no_gradients;
  const Tensor x = gen({37, 24}, 0.7, 0.3).to(at::kFloat);
  for (const char* json : {R"({"type": "group_norm", "groups": 3})", R"({"type": "gated_norm"})",
                           R"({"type": "dyt"})"}) {
    const auto part = part_of(json, 24);
    spec::ParamList list;
    part.config->params(list, scope_of(24));
    Values values;
    draw_weights(list.all(), values);
    const auto norm = build_norm(part, Builder(weights_from(values, at::kFloat), "", scope_of(24)));
    const auto normed = [&](const Tensor& rows) {
      return norm->forward(rows, ops::ProductSettings());
    };
    const Tensor all = normed(x);
    for (const int64_t row : {0, 17, 36})
      EXPECT_TRUE(at::equal(normed(x.narrow(0, row, 1)), all.narrow(0, row, 1)))
          << json << " row " << row;
  }
}

}  // namespace
}  // namespace tessera::nn::norms_test
