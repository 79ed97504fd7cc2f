// Feed-forward layers in slices: the same numbers and gradients from fewer activations.
#include "tessera/nn/ffn/chunked.h"

#include "tessera/base/testing.h"
#include "tessera/nn/registry.h"
#include "tessera/nn/weights_testing.h"
#include "tessera/ops/live_bytes_testing.h"
#include "tessera/ops/ops_testing.h"

namespace tessera::nn::chunked_test {
namespace {

using ops::gen;

constexpr int64_t kD = 6;

/// A layer with its weights, by name.
struct Layer {
  Values values;
  std::unique_ptr<Ffn> ffn;

  Layer(const std::string& json, at::ScalarType type) {
    register_mechanisms();
    spec::Scope scope;
    scope.d_model = kD;
    const spec::AnyPart part =
        spec::read_part(spec::Slot::ffn, spec::parse_json(json, "test"), scope);
    spec::ParamList list;
    part.config->params(list, scope);
    draw_weights(list.all(), values, {.phase_step = 0, .size = 1});
    for (auto& [name, value] : values) value = value.to(type).requires_grad_(true);
    ffn = build_ffn(part, Builder(weights_from(values), "", scope));
  }
  Tensor run(const Tensor& x) const {
    const Batch batch = Batch::of(at::zeros({1, x.size(0)}, at::kLong));
    Context context;
    context.batch = &batch;
    return ffn->forward(x, context);
  }
};

std::string chunked(int64_t chunk, const std::string& inner) {
  return fmt::format(R"({{"type": "chunked", "chunk": {}, "inner": {}}})", chunk, inner);
}

constexpr const char* kInner[] = {R"({"type": "mlp", "d_hidden": 11})",
                                  R"({"type": "glu", "d_hidden": 7, "bias": true})"};

TEST(ChunkedFfn, IsTheWholeLayer) {
  for (const char* inner : kInner)
    for (const int64_t n : {1, 4, 7, 12})
      for (const int64_t chunk : {0, 1, 4, 5, 64}) {
        const Tensor x = gen({n, kD}, 1.3, 0.2);
        ops::expect_near(Layer(chunked(chunk, inner), at::kDouble).run(x),
                         Layer(inner, at::kDouble).run(x), 1e-13);
        const at::NoGradGuard no_gradients;  // the kernels' rows do not depend on their company
        EXPECT_TRUE(at::equal(Layer(chunked(chunk, inner), at::kFloat).run(x.to(at::kFloat)),
                              Layer(inner, at::kFloat).run(x.to(at::kFloat))));
      }
}

TEST(ChunkedFfn, GradientsAreThoseOfTheWholeLayer) {
  for (const char* inner : kInner)
    for (const int64_t chunk : {1, 3, 64}) {
      Layer whole(inner, at::kDouble), sliced(chunked(chunk, inner), at::kDouble);
      Tensor of_x[2];
      for (const Layer* layer : {&whole, &sliced}) {
        const Tensor x = gen({7, kD}, 1.3, 0.2).requires_grad_(true);
        (layer->run(x) * gen({7, kD}, 0.31, 0.2)).sum().backward();
        of_x[layer == &sliced] = x.grad();
      }
      ops::expect_near(of_x[1], of_x[0], 1e-13);
      ASSERT_EQ(sliced.values.size(), whole.values.size());
      for (const auto& [name, value] : whole.values)
        ops::expect_near(sliced.values.at(name).grad(), value.grad(), 1e-13, name.c_str());
    }
}

TEST(ChunkedFfn, KeepsTheHiddenValuesOfOneSlice) {
  constexpr int64_t kN = 256, kHidden = 400;
  const std::string inner = fmt::format(R"({{"type": "mlp", "d_hidden": {}}})", kHidden);
  const Tensor x = gen({kN, kD}, 1.3, 0.2).requires_grad_(true);
  const auto bytes = [&](const Layer& layer) {
    ops::LiveBytes live;
    const Tensor y = layer.run(x);
    const int64_t kept = live.now() - static_cast<int64_t>(y.nbytes());
    y.sum().backward();
    return std::pair{kept, live.most()};
  };
  const int64_t hidden = kN * kHidden * 8;
  const auto [kept, most] = bytes(Layer(inner, at::kDouble));
  EXPECT_GE(kept, hidden);
  const auto [kept_sliced, most_sliced] = bytes(Layer(chunked(16, inner), at::kDouble));
  EXPECT_LT(kept_sliced, hidden / 16);
  EXPECT_LT(most_sliced, hidden / 2);
  EXPECT_GT(most, hidden);
}

TEST(ChunkedFfn, IsReadAndRefused) {
  register_mechanisms();
  spec::Scope scope;
  scope.d_model = kD;
  scope.path = "ffn";
  const auto error = [&](const char* json) {
    return test::error_of(
        [&] { spec::read_part(spec::Slot::ffn, spec::parse_json(json, "test"), scope); });
  };
  EXPECT_EQ(error(R"({"type": "chunked", "chunk": 4, "inner": {"type": "mlp", "d_hidden": 8}})"),
            "");
  EXPECT_NE(error(R"({"type": "chunked", "chunk": 4})").find("inner"), std::string::npos);
  EXPECT_NE(error(R"({"type": "chunked", "inner": null})").find("expected a feed-forward layer"),
            std::string::npos);
  EXPECT_NE(error(R"({"type": "chunked", "chunk": -1, "inner": {"type": "mlp", "d_hidden": 8}})")
                .find("chunk"),
            std::string::npos);
}

}  // namespace
}  // namespace tessera::nn::chunked_test
