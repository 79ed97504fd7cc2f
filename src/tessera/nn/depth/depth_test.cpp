// Mixture of Depths and layer dropout against their definitions.
#include "tessera/nn/depth/layer_drop.h"
#include "tessera/nn/registry.h"
#include "tessera/nn/weights_testing.h"

namespace tessera::nn::depth_test {
namespace {

spec::Scope scope_of(int64_t d, int64_t layer = 0, int64_t n_layers = 1) {
  spec::Scope scope;
  scope.d_model = scope.width = d;
  scope.layer = layer;
  scope.n_layers = n_layers;
  return scope;
}

std::unique_ptr<Depth> depth_of(const char* json, const Values& values, const spec::Scope& scope) {
  register_mechanisms();
  const spec::AnyPart part =
      spec::read_part(spec::Slot::depth, spec::parse_json(json, "test"), scope);
  return build_depth(part, Builder(weights_from(values, at::kDouble), "", scope));
}

/// Adds ten times the first channel to it; notes which tokens it is given.
struct TimesTen {
  std::vector<int64_t> seen;
  DepthLayer layer() {
    return {.run =
                [this](const Tensor& x_MD, Context& context) {
                  const Tensor ids = context.batch->ids_N;
                  for (int64_t i = 0; i < ids.numel(); ++i) seen.push_back(ids[i].item<int64_t>());
                  Tensor y = x_MD.clone();
                  y.select(1, 0).mul_(11);
                  return y;
                },
            .seen = [](const Context&, const Segment& s) { return s.start; }};
  }
};

// the second channel is r
Tensor example() {
  return at::tensor({1., .3, 2., 1.2, 3., -.5, 4., .8}, at::kDouble).view({4, 2});
}

Values router() {
  return {{"router.weight", at::tensor({0., 1.}, at::kDouble).view({1, 2})}};
}

TEST(MixtureOfDepths, AddsTheBranchOfTheLargestTimesTheirScore) {
  const Batch batch = Batch::of(std::vector<std::vector<int64_t>>{{0, 1, 2, 3}});
  Context context;
  context.batch = &batch;
  context.training = true;
  double loss = 0;
  context.add_loss = [&](const std::string&, const Tensor& own) { loss += own.item<double>(); };
  TimesTen f;
  const auto depth = depth_of(R"({"type": "mixture_of_depths", "capacity": 0.5, "loss": 0.5})",
                              router(), scope_of(2));
  const Tensor y = depth->forward(example(), f.layer(), context);
  EXPECT_TRUE(at::allclose(y.select(1, 0), at::tensor({1., 26., 3., 36.}, at::kDouble), 0, 1e-12));
  EXPECT_TRUE(at::equal(y.select(1, 1), example().select(1, 1)));
  EXPECT_EQ(f.seen, (std::vector<int64_t>{1, 3}));
  // specification: the mean is 0.49070384
  EXPECT_NEAR(loss, 0.5 * 4 * 0.49070384, 1e-7);
}

TEST(MixtureOfDepths, OfADocumentOfItsOwnEach) {
  // of equal scores the first, one token at least of each document
  const Batch batch = Batch::of(std::vector<std::vector<int64_t>>{{0}, {1, 2, 3}});
  Context context;
  context.batch = &batch;
  context.causal = false;
  TimesTen f;
  const Tensor x = at::tensor({1., -1., 1., 2., 1., 2., 1., 0.}, at::kDouble).view({4, 2});
  depth_of(R"({"type": "mixture_of_depths", "capacity": 0.1})", router(), scope_of(2))
      ->forward(x, f.layer(), context);
  EXPECT_EQ(f.seen, (std::vector<int64_t>{0, 1}));
}

TEST(MixtureOfDepths, ChoosesWithoutLaterTokensInInference) {
  const Batch batch = Batch::of(std::vector<std::vector<int64_t>>{{0, 1, 2, 3}});
  Context context;
  context.batch = &batch;
  TimesTen f;
  depth_of(R"({"type": "mixture_of_depths", "capacity": 0.25})", router(), scope_of(2))
      ->forward(example(), f.layer(), context);
  EXPECT_EQ(f.seen, (std::vector<int64_t>{0, 1, 3}));  // r > 0
}

TEST(MixtureOfDepths, GradientsReachTheRouterByTheScoreAlone) {
  const Batch batch = Batch::of(std::vector<std::vector<int64_t>>{{0, 1, 2, 3}});
  Context context;
  context.batch = &batch;
  context.training = true;
  Values values = router();
  values["router.weight"].requires_grad_(true);
  TimesTen f;
  const auto depth =
      depth_of(R"({"type": "mixture_of_depths", "capacity": 0.5})", values, scope_of(2));
  depth->forward(example(), f.layer(), context).select(1, 0).sum().backward();
  // sum over chosen tokens of 10 x_0 dr/dw, dr/dw = x
  EXPECT_TRUE(at::allclose(values["router.weight"].grad(),
                           at::tensor({20. * 2 + 40. * 4, 20. * 1.2 + 40. * .8}, at::kDouble), 0,
                           1e-9))
      << values["router.weight"].grad();
}

TEST(LayerDrop, GrowsWithTheDepth) {
  LayerDropConfig config;
  const double expected[] = {0,          0.01040895, 0.02190137, 0.03459002,
                             0.04859943, 0.06406707, 0.08114473, 0.1};
  for (int64_t l = 0; l < 8; ++l) EXPECT_NEAR(config.probability(l, 8), expected[l], 1e-8);
}

TEST(LayerDrop, PassesSamplesByInTrainingAlone) {
  std::vector<std::vector<int64_t>> rows;
  for (int64_t i = 0; i < 400; ++i) rows.push_back({i});
  const Batch batch = Batch::of(rows);
  const Tensor x = at::ones({400, 2}, at::kDouble);
  const auto depth =
      depth_of(R"({"type": "layer_drop", "p": 0.25, "grows": false})", {}, scope_of(2));
  Context context;
  context.batch = &batch;
  TimesTen all, some, again;
  EXPECT_TRUE((depth->forward(x, all.layer(), context).select(1, 0) == 11).all().item<bool>());
  context.training = true;
  const Tensor y = depth->forward(x, some.layer(), context);
  // 300 of 400, give or take four standard deviations
  EXPECT_NEAR(static_cast<double>(some.seen.size()), 300, 35);
  EXPECT_EQ((y.select(1, 0) == 11).sum().item<int64_t>(), static_cast<int64_t>(some.seen.size()));
  // a sample's fate is its own, whatever stands beside it
  Batch last;
  last.segments = {{.row = 0, .begin = 0, .length = 1, .sample = 399}};
  last.ids_N = at::tensor({int64_t{399}});
  last.number();
  context.batch = &last;
  depth->forward(x.narrow(0, 0, 1), again.layer(), context);
  EXPECT_EQ(again.seen.empty(), some.seen.back() != 399);
}

// --- adaptive computation ----------------------------------------------------------------------

/// Steps that add 1 to the first channel; the gate reads the second, w = (0, 1), b = 0.
struct Steps {
  Values values = {{"shared.halting.weight", at::tensor({0., 1.}, at::kDouble).view({1, 2})},
                   {"shared.halting.bias", at::zeros({1}, at::kDouble)}};
  double ponder = 0;
  std::vector<double> steps;

  Tensor run(Tensor x_ND, int64_t n, const Batch& batch) {
    Context context;
    context.batch = &batch;
    context.training = true;
    context.add_loss = [&](const std::string&, const Tensor& own) { ponder += own.item<double>(); };
    context.add_statistic = [&](const std::string&, const Tensor& value) {
      steps.push_back(value.item<double>());
    };
    for (int64_t i = 0; i < n; ++i) {
      const auto depth =
          depth_of(R"({"type": "adaptive_computation", "threshold": 0.05, "ponder": 1})", values,
                   scope_of(2, i, n));
      DepthLayer layer{.run =
                           [](const Tensor& x, Context&) {
                             return x + at::tensor({1., 0.}, at::kDouble);
                           },
                       .seen = [](const Context&, const Segment& s) { return s.start; },
                       .first = i == 0,
                       .last = i == n - 1};
      x_ND = depth->forward(x_ND, layer, context);
    }
    return x_ND;
  }
};

TEST(AdaptiveComputation, WeighsTheStatesOfItsSteps) {
  const Batch batch = Batch::of(std::vector<std::vector<int64_t>>{{0, 1, 2}});
  // h = 0.5, 0.3, 0.97 in every step
  const auto logit = [](double p) { return std::log(p / (1 - p)); };
  const Tensor x = at::tensor({10., logit(0.5), 20., logit(0.3), 30., logit(0.97)}, at::kDouble)
                       .view({3, 2})
                       .requires_grad_(true);
  Steps run;
  const Tensor y = run.run(x, 3, batch);
  // the first halts after two steps (0.5 + 0.5), the second takes all three, the third one
  const double second = 0.3 * 21 + 0.3 * 22 + 0.4 * 23;
  EXPECT_TRUE(at::allclose(y.select(1, 0),
                           at::tensor({0.5 * 11 + 0.5 * 12, second, 31.}, at::kDouble), 0, 1e-12))
      << y;
  EXPECT_TRUE(at::allclose(y.select(1, 1), x.select(1, 1), 0, 1e-12));
  // N + R of each
  EXPECT_NEAR(run.ponder, (2 + 0.5) + (3 + 0.4) + (1 + 1.0), 1e-12);
  EXPECT_EQ(run.steps, (std::vector<double>{3, 2, 1}));
  // the first token: y = h 11 + (1 - h) 12, of which the slope is -h (1 - h)
  y.select(1, 0)[0].backward();
  EXPECT_NEAR(x.grad()[0][1].item<double>(), -0.25, 1e-12);
}

TEST(AdaptiveComputation, OneStepIsTheLayer) {
  const Batch batch = Batch::of(std::vector<std::vector<int64_t>>{{0}});
  Steps run;
  const Tensor y = run.run(at::tensor({10., -3.}, at::kDouble).view({1, 2}), 1, batch);
  EXPECT_TRUE(at::equal(y, at::tensor({11., -3.}, at::kDouble).view({1, 2})));
}

}  // namespace
}  // namespace tessera::nn::depth_test
