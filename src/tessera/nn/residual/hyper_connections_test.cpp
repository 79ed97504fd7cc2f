// Hyper-connections against the numbers of the specification, and learned gains.
#include "tessera/nn/registry.h"
#include "tessera/nn/weights_testing.h"

namespace tessera::nn::hyper_connections_test {
namespace {

using ops::gen;

class Same final : public Norm {
 public:
  Tensor forward(const Tensor& x, const ops::ProductSettings&) const override { return x; }
};

/// f(u) = factor u, with u as it was.
struct TimesBranch {
  Branch branch;
  Tensor u;
  explicit TimesBranch(double factor) {
    branch.name = "branch";
    branch.norms.push_back(std::make_unique<Same>());
    branch.run = [this, factor](const Tensor& x, Context&) {
      u = x.clone();
      return x * factor;
    };
  }
};

spec::Scope scope_of(int64_t d) {
  spec::Scope scope;
  scope.d_model = scope.width = d;
  return scope;
}

std::unique_ptr<Residual> residual_of(const char* json, const Values& values, int64_t d) {
  register_mechanisms();
  const spec::AnyPart part =
      spec::read_part(spec::Slot::residual, spec::parse_json(json, "test"), scope_of(d));
  return build_residual(part, Builder(weights_from(values, at::kDouble), "", scope_of(d)));
}

Tensor row(const std::vector<double>& values) {
  return at::tensor(values, at::kDouble);
}

void expect_near(const Tensor& value, const std::vector<double>& expected, double bound = 1e-7) {
  EXPECT_TRUE(at::allclose(value.flatten().to(at::kDouble), row(expected), 0, bound)) << value;
}

Values hyper_weights() {
  Values values;
  values["alpha"] =
      at::tensor({1., 1., 0., 0., 0., 1.}, at::kDouble).view({2, 3}) + 0.1 * gen({2, 3}, 0.9, 0.3);
  values["beta"] = 1 + 0.1 * gen({2}, 0.4, 0.2);
  values["alpha_of.weight"] = gen({3, 3}, 0.6, 0.2).t().contiguous();
  values["beta_of.weight"] = gen({3}, 0.5, -0.1).view({1, 3});
  values["alpha_scale"] = row({0.3});
  values["beta_scale"] = row({0.2});
  values["norm.weight"] = 1 + 0.1 * gen({3}, 0.8, 0.5);
  return values;
}

// H of one token with two streams of three channels
Stream streams() {
  return {gen({2, 3}, 0.7, 0.1).to(at::kDouble).unsqueeze(0)};
}

Context context_of_one_token() {
  static const Batch batch = Batch::of(std::vector<std::vector<int64_t>>{{0}});
  Context context;
  context.batch = &batch;
  return context;
}

TEST(HyperConnections, AreTheSpecificationsNumbers) {
  const Values values = hyper_weights();
  TimesBranch f(10);
  Context context = context_of_one_token();
  const auto fixed =
      residual_of(R"({"type": "hyper_connections", "streams": 2, "dynamic": false})", values, 3);
  Stream next = fixed->forward(streams(), {&f.branch, 1}, context);
  expect_near(f.u, {0.11419320, 0.74193170, 1.02072813});
  expect_near(next[0], {1.21815130, 8.33447779, 11.53096915, 1.94298487, 8.11558215, 10.47129434});

  const auto rms = residual_of(
      R"({"type": "hyper_connections", "streams": 2, "norm": {"type": "rms_norm", "eps": 0}})",
      values, 3);
  next = rms->forward(streams(), {&f.branch, 1}, context);
  expect_near(f.u, {0.32466770, 0.82528244, 0.93775396});
  expect_near(next[0], {4.18101975, 10.63815181, 12.09199485, 4.00566828, 7.93010014, 8.12488199});

  const auto layer = residual_of(
      R"({"type": "hyper_connections", "streams": 2,
          "norm": {"type": "layer_norm", "eps": 1e-5, "bias": false}})",
      values, 3);
  layer->forward(streams(), {&f.branch, 1}, context);
  expect_near(f.u, {0.29546928, 0.67388352, 0.73535981});
}

TEST(ManifoldHyperConnections, AreTheSpecificationsNumbers) {
  Values values;
  values["fn.weight"] = gen({8, 6}, 0.37, 0.2);
  values["base"] = gen({8}, 0.9, -0.4);
  values["scale"] = row({0.8, 0.6, 1.2});
  values["leave.fn.weight"] = gen({2, 6}, 0.5, 0.1);
  values["leave.base"] = gen({2}, 0.3, 0.2);
  values["leave.scale"] = row({0.7});
  TimesBranch f(10);
  Context context = context_of_one_token();
  const auto residual =
      residual_of(R"({"type": "manifold_hyper_connections", "streams": 2})", values, 3);
  const Stream next = residual->forward(streams(), {&f.branch, 1}, context);
  expect_near(f.u, {0.63816025, 0.78900688, 0.56877125});
  expect_near(next[0], {4.16948722, 4.50830075, 2.72679000, 12.28205624, 15.66590184, 11.68182901});
  expect_near(residual->leave(streams(), context), {0.22982017, 0.70364143, 0.84652913});
}

// LayerScale and ReZero are learned factors on the branch
TEST(Gain, ScalesTheBranchByChannelOrAsAWhole) {
  TimesBranch f(10);
  Context context = context_of_one_token();
  const Tensor x = row({1, 2, 3}).view({1, 3});
  for (const auto& [gain, expected] : {std::pair{row({0.5}), std::vector{6., 12., 18.}},
                                       std::pair{row({0.5, 0.1, 0}), std::vector{6., 4., 3.}}}) {
    f.branch.gain = std::make_shared<ops::Weight>(ops::Weight::dense("gain", gain));
    const auto residual = residual_of(R"({"type": "pre_norm", "gain": "channel"})", {}, 3);
    expect_near(residual->forward({x}, {&f.branch, 1}, context)[0], expected, 1e-12);
  }
}

// Gemma 4's layer scalar is a learned factor on the whole sum
TEST(Gain, OfTheSumScalesTheStreamToo) {
  TimesBranch f(10);
  Context context = context_of_one_token();
  const Tensor x = row({1, 2, 3}).view({1, 3});
  f.branch.sum_gain = std::make_shared<ops::Weight>(ops::Weight::dense("sum_gain", row({0.5})));
  const auto residual = residual_of(R"({"type": "pre_norm", "sum_gain": true})", {}, 3);
  expect_near(residual->forward({x}, {&f.branch, 1}, context)[0], {5.5, 11., 16.5}, 1e-12);
}

TEST(Gain, RefusesAnIdleInitialValue) {
  EXPECT_THROW(residual_of(R"({"type": "pre_norm", "gain_init": 0.1})", {}, 3), Error);
  EXPECT_THROW(
      residual_of(R"({"type": "hyper_connections", "dynamic": false, "norm": "rms_norm"})", {}, 3),
      Error);
}

}  // namespace
}  // namespace tessera::nn::hyper_connections_test
