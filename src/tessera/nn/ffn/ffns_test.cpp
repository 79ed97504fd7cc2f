// Options of plain and gated feed-forward layers, and xIELU, against torch and transformers in
// float64 (tools/golden/norms.py) and the specification's numbers.
#include <gtest/gtest.h>

#include "tessera/base/threads.h"
#include "tessera/nn/registry.h"
#include "tessera/nn/weights_testing.h"
#include "tessera/ops/basic/xielu.h"

namespace tessera::nn::ffns_test {
namespace {

using ops::gen;
using ops::tensor;

spec::Scope scope_of(int64_t width) {
  spec::Scope scope;
  scope.d_model = width;
  scope.path = "ffn";
  return scope;
}

spec::AnyPart part_of(const std::string& json, int64_t width) {
  register_mechanisms();
  return spec::read_part(spec::Slot::ffn, spec::parse_json(json, "test"), scope_of(width));
}

std::string refusal(const std::string& json) {
  try {
    part_of(json, 4);
    return "";
  } catch (const Error& e) {
    return e.what();
  }
}

Tensor eye(int64_t n) {
  return at::eye(n, at::kDouble);
}

// transformers 5.23, XIELUActivation with alpha_p 0.8, alpha_n 0.9
TEST(Xielu, IsTransformers) {
  const double p = std::log(std::expm1(0.8)), n = std::log(std::expm1(0.4));
  const Tensor want = tensor({0.34480836, -0.1689085, -0.15412241, -9e-07, 0.45, 1.3, 8.7});
  const auto run = [&](at::ScalarType type) {
    return ops::xielu(tensor({-3, -1, -.5, 0, .5, 1, 3}).to(type), tensor({p}).to(type),
                      tensor({n}).to(type), 0.5, -1e-6);
  };
  ops::expect_both(run, want, 1e-8);
  const Tensor x = tensor({-3, -1, -.5, 0, .5, 1, 3}).requires_grad_(true),
               a_p = tensor({p}).requires_grad_(true), a_n = tensor({n}).requires_grad_(true);
  (ops::xielu(x, a_p, a_n, 0.5, -1e-6) * gen({7}, 0.4, 0.6)).sum().backward();
  ops::expect_near(x.grad(),
                   tensor({-0.20055629, -0.05798451, 0.14375504, -0.38953905, 1.05104532,
                           1.08255288, 0.74793604}),
                   1e-8);
  ops::expect_near(a_p.grad(), tensor({1.09457187}), 1e-8);
  ops::expect_near(a_n.grad(), tensor({0.5182359}), 1e-8);
}

TEST(Xielu, LayerBeginsWithItsAlphas) {
  const auto part = part_of(R"({"type": "xielu", "d_hidden": 7, "alpha_n": 0.9})", 7);
  spec::ParamList list;
  part.config->params(list, scope_of(7));
  Values values = {{"up.weight", eye(7)}, {"down.weight", eye(7)}};
  for (const spec::ParamDecl& decl : list.all())
    if (decl.name.starts_with("alpha")) values[decl.name] = tensor({decl.init.a});
  Context context;
  ops::expect_near(build_ffn(part, Builder(weights_from(values), "", scope_of(7)))
                       ->forward(tensor({-3, -1, -.5, 0, .5, 1, 3}, {1, 7}), context),
                   tensor({0.34480836, -0.1689085, -0.15412241, -9e-07, 0.45, 1.3, 8.7}, {1, 7}),
                   1e-8);
  EXPECT_NE(refusal(R"({"type": "xielu", "d_hidden": 7, "alpha_n": 0.5})").find("alpha_n = 0.5"),
            std::string::npos);
}

// the same bits for any number of threads, values and gradients
TEST(Xielu, ThreadsChangeNothing) {
  const auto run = [](int threads) {
    const int before = thread_count();
    set_thread_count(threads);
    const Tensor x = (3 * gen({53, 1001}, 0.37, 0.1)).to(at::kFloat).requires_grad_(true);
    const Tensor p = tensor({0.2}).to(at::kFloat).requires_grad_(true),
                 n = tensor({-0.3}).to(at::kFloat).requires_grad_(true);
    const Tensor y = ops::xielu(x, p, n, 0.5, -1e-6);
    (y * y).sum().backward();
    set_thread_count(before);
    return std::vector<Tensor>{y.detach(), x.grad(), p.grad(), n.grad()};
  };
  const std::vector<Tensor> one = run(1), two = run(2);
  for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(at::equal(one[i], two[i])) << i;
}

// the quantile 0.9 of the standard normal distribution is 1.2815515655446004
TEST(GaussianTopK, KeepsWhatLiesAboveItsQuantile) {
  Values values = {{"gate.weight", eye(5)}, {"up.weight", eye(5)}, {"down.weight", eye(5)}};
  const Tensor x = tensor({-1, 4, .5, 0, 2, 3, 3, 3, 3, 9}, {2, 5});
  const Tensor mean = x.mean(-1, true), deviation = x.std(-1, /*unbiased=*/false, /*keepdim=*/true);
  const Tensor want = (x - mean - 1.2815515655446004 * deviation).relu() * x;
  ASSERT_GT(want.max().item<double>(), 0.5);
  Context context;
  ops::expect_both(
      [&](at::ScalarType type) {
        return build_ffn(part_of(R"({"type": "glu", "d_hidden": 5, "act": "relu", "sparsity": 0.9})", 5),
                         Builder(weights_from(values, type), "", scope_of(5)))
            ->forward(x.to(type), context);
      },
      want, 1e-8);
  EXPECT_NE(refusal(R"({"type": "glu", "d_hidden": 5, "sparsity": 1})").find("sparsity] found 1; expected less than 1"),
            std::string::npos);
}

class Swish : public testing::Test {
 protected:
  const Tensor x = tensor({-3, -1, .5, 2}, {1, 4});
  const Tensor want = tensor({-0.05952092, -0.21416502, 0.32850523, 1.86172316}, {1, 4});
  Values values = {{"up.weight", eye(4)}, {"down.weight", eye(4)}, {"slope", tensor({1.3})}};
  Context context;
  std::unique_ptr<Ffn> build(const std::string& json, at::ScalarType type = at::kDouble) {
    return build_ffn(part_of(json, 4), Builder(weights_from(values, type), "", scope_of(4)));
  }
};

TEST_F(Swish, GivenAndLearned) {
  for (const char* slope : {R"("slope": 1.3)", R"("learned_slope": true)"}) {
    SCOPED_TRACE(slope);
    const std::string json =
        fmt::format(R"({{"type": "mlp", "d_hidden": 4, "act": "silu", "bias": false, {}}})", slope);
    Values given = values;
    if (std::string_view(slope).starts_with("\"slope")) values.erase("slope");
    ops::expect_both(
        [&](at::ScalarType type) { return build(json, type)->forward(x.to(type), context); }, want,
        1e-8);
    values = given;
  }
  values["slope"].requires_grad_(true);
  const auto ffn = build_ffn(part_of(R"({"type": "mlp", "d_hidden": 4, "act": "silu", "bias": false,
                  "learned_slope": true})",
                                     4),
                             Builder(weights_from(values), "", scope_of(4)));
  (ffn->forward(x, context) * gen({1, 4}, 0.4, 0.6)).sum().backward();
  ops::expect_near(values["slope"].grad(), tensor({0.54665984}), 1e-8);
}

TEST_F(Swish, GatesTheSameWay) {
  values["gate.weight"] = eye(4);
  values["up.weight"] = 2 * eye(4);
  const std::string json = R"({"type": "glu", "d_hidden": 4, "learned_slope": true})";
  ops::expect_both(
      [&](at::ScalarType type) { return build(json, type)->forward(x.to(type), context); },
      want * 2 * x, 1e-7);
}

TEST(Ffns, RefuseSlopesThatDoNothing) {
  EXPECT_NE(refusal(R"({"type": "mlp", "d_hidden": 4, "learned_slope": true})").find("Swish"),
            std::string::npos);
  EXPECT_NE(refusal(R"({"type": "mlp", "d_hidden": 4, "act": "relu", "slope": 2})").find("slope"),
            std::string::npos);
  EXPECT_NE(refusal(R"({"type": "mlp", "d_hidden": 4, "dropout": 1})").find("less than 1"),
            std::string::npos);
  EXPECT_NE(refusal(R"({"type": "chunked", "chunk": 2,
                        "inner": {"type": "glu", "d_hidden": 4, "dropout": 0.1}})")
                .find("dropout = 0.1 in slices"),
            std::string::npos);
}

// specification, additions 6.3: x + W2 LN(relu(W1 LN(x)))
TEST(Ffns, InnerNormIsSubLns) {
  const Tensor x = tensor({1, 2, -1}, {1, 3});
  const Tensor normed = at::layer_norm(x, {3});
  Values values = {{"up.weight", gen({4, 3}, .5, .1)},
                   {"down.weight", gen({3, 4}, .6, .2)},
                   {"inner_norm.weight", at::ones({4}, at::kDouble)},
                   {"inner_norm.bias", at::zeros({4}, at::kDouble)}};
  const auto run = [&](const char* norm, at::ScalarType type) {
    const auto part =
        part_of(fmt::format(R"({{"type": "mlp", "d_hidden": 4, "act": "relu", "bias": false,
                         "inner_norm": {}}})",
                            norm),
                3);
    Context context;
    return x.to(type) + build_ffn(part, Builder(weights_from(values, type), "", scope_of(3)))
                            ->forward(normed.to(type), context);
  };
  ops::expect_both([&](at::ScalarType type) { return run("\"layer_norm\"", type); },
                   tensor({1.64800502, 1.64312463, -1.12168972}, {1, 3}), 1e-8);
  ops::expect_both([&](at::ScalarType type) { return run("null", type); },
                   tensor({1.98177508, 1.58435788, -1.36879130}, {1, 3}), 1e-8);
}

// of hidden values, in training alone, by the random numbers of each document
TEST(Ffns, DropoutIsOfHiddenValuesByToken) {
  constexpr int64_t kHidden = 400;
  for (const char* type : {"mlp", "glu", "xielu"}) {
    SCOPED_TRACE(type);
    const auto part =
        part_of(fmt::format(R"({{"type": "{}", "d_hidden": {}, "bias": false, "dropout": 0.25}})",
                            type, kHidden),
                4);
    spec::ParamList list;
    part.config->params(list, scope_of(4));
    Values values;
    draw_weights(list.all(), values);
    // the first output counts the hidden values that stay, the second tells which
    values["up.weight"] = at::ones({kHidden, 4}, at::kDouble);
    values["gate.weight"] = at::ones({kHidden, 4}, at::kDouble);
    values["down.weight"] = gen({4, kHidden}, 0.7, 0.1);
    values["down.weight"][0].fill_(1.0 / kHidden);
    Values named;
    for (const auto& [name, value] : values) named["ffn." + name] = value;
    const auto ffn = build_ffn(part, Builder(weights_from(named), "ffn", scope_of(4)));
    const auto run = [&](const std::vector<std::vector<int64_t>>& ids, bool training) {
      const Batch batch = Batch::of(ids);
      Context context;
      context.batch = &batch;
      context.training = training;
      context.key = RandomKey(5);
      return ffn->forward(at::ones({batch.ids_N.size(0), 4}, at::kDouble), context);
    };
    const Tensor kept = run({{1, 2, 3}, {4, 5}}, true), all = run({{1, 2, 3}, {4, 5}}, false);
    EXPECT_FALSE(at::equal(kept, all));
    // of 2000 values a quarter is dropped, the others are 4/3 as large
    EXPECT_NEAR((kept / all).select(1, 0).mean().item<double>(), 1, 0.05);
    for (int64_t i = 1; i < 5; ++i)
      EXPECT_NE(kept[i][1].item<double>(), kept[0][1].item<double>()) << "token " << i;
    // the first document's do not hang on the second: one more or less would change the first output
    // by 1 / 300; libtorch's products of doubles add up in an order that turns on the rows
    EXPECT_LT((run({{1, 2, 3}}, true) - kept.narrow(0, 0, 3)).abs().max().item<double>(), 1e-12);
  }
}

}  // namespace
}  // namespace tessera::nn::ffns_test
