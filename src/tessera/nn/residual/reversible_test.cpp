// Reversible branches against their definition and ordinary autograd.
#include "tessera/nn/residual/reversible.h"

#include "tessera/nn/registry.h"
#include "tessera/nn/checkpointing.h"
#include "tessera/ops/ops_testing.h"
#include "tessera/ops/random.h"

namespace tessera::nn::reversible_test {
namespace {

using ops::gen;

constexpr int64_t kN = 5, kD = 4;

class Same final : public Norm {
 public:
  Tensor forward(const Tensor& x, const ops::ProductSettings&) const override { return x; }
};

/// Branches f_i(x) = tanh(x W_i), and the values that their inputs had, run by run.
struct Net {
  std::vector<Tensor> weights;
  std::vector<Branch> branches;
  std::vector<std::vector<Tensor>> inputs;
  std::unique_ptr<Residual> residual;

  explicit Net(int64_t n, const char* json = R"({"type": "reversible", "merge": "concat"})") {
    register_mechanisms();
    spec::Scope scope;
    scope.d_model = kD;
    const spec::AnyPart part =
        spec::read_part(spec::Slot::residual, spec::parse_json(json, "test"), scope);
    residual =
        build_residual(part, Builder([](const std::string&) { return WeightPtr(); }, "", scope));
    inputs.resize(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) {
      const Tensor w = gen({kD, kD}, 0.7 + 0.1 * static_cast<double>(i), 0.3).requires_grad_(true);
      weights.push_back(w);
      Branch branch;
      branch.name = fmt::format("branch {}", i);
      branch.norms.push_back(std::make_unique<Same>());
      branch.weights = {std::make_shared<ops::Weight>(ops::Weight::dense(branch.name, w))};
      branch.run = [this, i, w](const Tensor& x, Context&) {
        inputs[static_cast<size_t>(i)].push_back(x.detach().clone());
        return at::tanh(at::matmul(x, w));
      };
      branches.push_back(std::move(branch));
    }
  }

  Tensor run(const Tensor& x_ND, Context& context) const {
    Stream stream = residual->enter(x_ND, context);
    for (size_t i = 0; i < branches.size(); ++i)
      stream = residual->forward(stream, std::span(branches).subspan(i, 1), context);
    return residual->leave(stream, context);
  }
};

struct Gradients {
  Tensor y, x;
  std::vector<Tensor> weights;
};

/// A call whose inputs are replaced, by themselves, computes nothing twice.
Tensor same(const std::string&, const Tensor& x_ND) {
  return x_ND;
}

/// Of a sum with unequal weights.
Gradients gradients(Net& net, bool stored, Context context = {}) {
  const Batch batch = Batch::of(at::zeros({1, kN}, at::kLong));
  context.batch = &batch;
  if (stored) context.call.replace = same;
  const Tensor x = gen({kN, kD}, 0.9, 0.1).requires_grad_(true);
  for (const Tensor& w : net.weights) w.mutable_grad() = Tensor();
  const Tensor y = net.run(x, context);
  (y * gen(y.sizes().vec(), 0.31, 0.2)).sum().backward();
  Gradients out{y.detach(), x.grad(), {}};
  for (const Tensor& w : net.weights) out.weights.push_back(w.grad());
  return out;
}

void expect_alike(const Gradients& got, const Gradients& want, double tolerance) {
  ops::expect_near(got.y, want.y, 0, "y");
  ops::expect_near(got.x, want.x, tolerance, "x");
  for (size_t i = 0; i < want.weights.size(); ++i)
    ops::expect_near(got.weights[i], want.weights[i], tolerance, "weight");
}

TEST(Reversible, IsTheDefinition) {
  Net net(4);
  const at::NoGradGuard no_gradients;
  const Tensor x = gen({kN, kD}, 0.9, 0.1);
  const auto f = [&](size_t i, const Tensor& z) { return at::tanh(at::matmul(z, net.weights[i])); };
  Tensor a = x, b = x;
  for (size_t layer = 0; layer < 2; ++layer) {
    a = a + f(2 * layer, b);
    b = b + f(2 * layer + 1, a);
  }
  Context context;
  ops::expect_near(net.run(x, context), at::cat({a, b}, 1), 1e-15);
  Net mean(4, R"({"type": "reversible", "merge": "mean"})");
  ops::expect_near(mean.run(x, context), (a + b) / 2, 1e-15);
}

TEST(Reversible, GradientsAreThoseOfStoredActivations) {
  for (const int64_t n : {1, 2, 3, 8}) {
    Net net(n);
    const Gradients want = gradients(net, true);
    expect_alike(gradients(net, false), want, 1e-12);
  }
}

TEST(Reversible, InputsComeBack) {
  Net net(12);
  gradients(net, false);
  for (const auto& seen : net.inputs) {
    ASSERT_EQ(seen.size(), 2u);  // forwards, and again backwards
    ops::expect_near(seen[1], seen[0], 1e-13);
  }
}

TEST(Reversible, DropoutIsDrawnAgain) {
  Net net(4, R"({"type": "reversible", "dropout": 0.4, "scale": 0.8})");
  Context context;
  const Batch batch = Batch::of({{1, 2}, std::vector<int64_t>(kN - 2, 1)});
  context.batch = &batch;
  context.training = true;
  context.key = RandomKey(7);
  const Gradients want = gradients(net, true, context);
  expect_alike(gradients(net, false, context), want, 1e-12);
  context.key = RandomKey(8);
  EXPECT_GT((gradients(net, true, context).x - want.x).abs().max().item<double>(), 1e-3);
}

TEST(Reversible, ValuesSharedBetweenBranchesAndTheirLossesHaveGradients) {
  Net net(4);
  Tensor loss;
  Context context;
  context.add_loss = [&](const std::string&, const Tensor& l) {
    loss = loss.defined() ? loss + l : l;
  };
  // the first branch shares a value, the second shares another in its place and has a loss of its
  // own, the third reads what is there
  const auto shared = [&net](const Tensor& x) { return at::sin(at::matmul(x, net.weights[0])); };
  net.branches[0].run = [&](const Tensor& x, Context& here) {
    here.values.put("value", shared(x));
    return at::tanh(at::matmul(x, net.weights[0]));
  };
  net.branches[1].run = [&](const Tensor& x, Context& here) {
    const Tensor y = at::matmul(x, net.weights[1]);
    if (here.add_loss) here.add_loss("own", y.square().sum());
    here.values.put("value", here.values.at("value") * y);
    return at::tanh(y);
  };
  net.branches[2].run = [&](const Tensor& x, Context& here) {
    return at::tanh(at::matmul(x, net.weights[2])) * here.values.at("value");
  };
  const Batch batch = Batch::of(at::zeros({1, kN}, at::kLong));
  context.batch = &batch;
  const auto run = [&](bool stored) {
    loss = Tensor();
    Context own = context;
    if (stored) own.call.replace = same;
    const Tensor x = gen({kN, kD}, 0.9, 0.1).requires_grad_(true);
    for (const Tensor& w : net.weights) w.mutable_grad() = Tensor();
    const Tensor y = net.run(x, own);
    EXPECT_TRUE(loss.defined());
    ((y * gen(y.sizes().vec(), 0.31, 0.2)).sum() + 0.3 * loss).backward();
    Gradients out{y.detach(), x.grad(), {}};
    for (const Tensor& w : net.weights) out.weights.push_back(w.grad());
    return out;
  };
  const Gradients want = run(true);
  expect_alike(run(false), want, 1e-12);
}

TEST(Reversible, ChoicesAreThoseOfTheFirstRun) {
  // a choice by the sign of a number that rounding decides: made anew it would differ
  Net net(2);
  int made = 0;
  std::vector<double> factors;
  net.branches[0].run = [&](const Tensor& x, Context& here) {
    const Tensor sign = chosen(here, [&] { return at::full({}, ++made, at::kDouble); });
    factors.push_back(sign.item<double>());
    return at::tanh(at::matmul(x, net.weights[0])) * sign;
  };
  gradients(net, false);
  EXPECT_EQ(made, 1);
  EXPECT_EQ(factors, (std::vector<double>{1, 1}));
}

TEST(Reversible, SecondDerivativesAreRefused) {
  Net net(2);
  const Batch batch = Batch::of(at::zeros({1, kN}, at::kLong));
  Context context;
  context.batch = &batch;
  const Tensor x = gen({kN, kD}, 0.9, 0.1).requires_grad_(true);
  const Tensor y = net.run(x, context).sum();
  // twice is no second derivative
  y.backward({}, /*retain_graph=*/true);
  const Tensor once = x.grad().clone();
  y.backward({}, /*retain_graph=*/true);
  ops::expect_near(x.grad(), once * 2, 1e-12);
  EXPECT_THROW(y.backward({}, true, /*create_graph=*/true), Error);
}

}  // namespace
}  // namespace tessera::nn::reversible_test
