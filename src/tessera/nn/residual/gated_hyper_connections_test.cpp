// Gated hyper-connections against the numbers of tools/golden/ngram_memory.py.
#include "tessera/nn/residual/gated_hyper_connections.h"

#include <gmock/gmock.h>

#include "tessera/base/testing.h"
#include "tessera/nn/registry.h"
#include "tessera/nn/weights_testing.h"

namespace tessera::nn::gated_hyper_connections_test {
namespace {

using ops::gen;

spec::Scope scope_of_three() {
  spec::Scope scope;
  scope.d_model = scope.width = 3;
  return scope;
}

/// f(u) = 10 u, with u as it was.
struct TenTimes {
  Branch branch;
  Tensor u;
  TenTimes() {
    branch.name = "branch";
    branch.run = [this](const Tensor& x, Context&) {
      u = x.clone();
      return x * 10;
    };
  }
};

struct Streams {
  Values values;
  TenTimes f;
  Batch batch = Batch::of(std::vector<std::vector<int64_t>>{{0}});
  Context context;

  Streams() {
    values["norm.weight"] = 1 + 0.3 * gen({6}, 0.8, 0.5);
    values["down.weight"] = gen({4, 6}, 0.37, 0.2);
    values["up.weight"] = gen({6, 4}, 0.9, -0.4);
    values["inject.weight"] = gen({2, 6}, 0.5, 0.1);
    values["leave.norm.weight"] = values["norm.weight"];
    values["leave.down.weight"] = gen({4, 6}, 0.6, 0.3);
    values["leave.up.weight"] = gen({6, 4}, 0.2, 0.7);
    context.batch = &batch;
  }
  std::unique_ptr<Residual> residual(const std::string& more) const {
    register_mechanisms();
    const spec::AnyPart part = spec::read_part(
        spec::Slot::residual,
        spec::parse_json(
            R"({"type": "gated_hyper_connections", "streams": 2, "rank": 4)" + more + "}", "test"),
        scope_of_three());
    return build_residual(part, Builder(weights_from(values, at::kDouble), "", scope_of_three()));
  }
  /// H of one token.
  static Stream input() { return {gen({2, 3}, 0.7, 0.1).to(at::kDouble).unsqueeze(0)}; }
};

TEST(GatedHyperConnections, AreTheGoldensNumbers) {
  Streams s;
  const auto residual = s.residual(R"(, "magnitude": 1.5)");
  const Stream next = residual->forward(Streams::input(), {&s.f.branch, 1}, s.context);
  ops::expect_near(s.f.u, ops::tensor({0.40529839, 0.31431034, 0.37400163}, {1, 3}), 1e-8);
  ops::expect_near(
      next[0],
      ops::tensor({5.42882298, 4.85000643, 5.91498506, 1.6864867, 0.92013392, 0.36767228},
                  {1, 2, 3}),
      1e-7);
  ops::expect_near(residual->leave(Streams::input(), s.context),
                   ops::tensor({0.4238598, 0.63108692, 0.74526958}, {1, 3}), 1e-8);
}

TEST(GatedHyperConnections, WeightsOfTheNormAddOneWhereTheySaySo) {
  Streams s, plus_one;
  plus_one.values["norm.weight"] = plus_one.values["norm.weight"] - 1;
  const Stream want = s.residual("")->forward(Streams::input(), {&s.f.branch, 1}, s.context);
  const Stream got = plus_one.residual(R"(, "norm_weight": "plus_one")")
                         ->forward(Streams::input(), {&plus_one.f.branch, 1}, plus_one.context);
  ops::expect_near(got[0], want[0], 1e-12);
}

TEST(GatedHyperConnections, ABranchOfAllStreamsIsAddedToThem) {
  Streams s;
  const auto residual = s.residual(R"(, "reads": "all", "scale": 0.5)");
  const Tensor h = Streams::input()[0];
  Stream next = residual->forward(Streams::input(), {&s.f.branch, 1}, s.context);
  ops::expect_near(s.f.u, h.flatten(1), 0);
  ops::expect_near(next[0], 6 * h, 1e-12);
  // of d_model channels: to each
  s.f.branch.run = [](const Tensor& x, Context&) { return x.narrow(1, 0, 3); };
  next = residual->forward(Streams::input(), {&s.f.branch, 1}, s.context);
  ops::expect_near(next[0], h + 0.5 * h.narrow(1, 0, 1), 1e-12);
}

}  // namespace
}  // namespace tessera::nn::gated_hyper_connections_test
