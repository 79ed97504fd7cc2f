// Per-layer embeddings against the formula in double, layer by layer.
#include "tessera/nn/ffn/per_layer_embedding.h"

#include <gmock/gmock.h>

#include "tessera/nn/registry.h"
#include "tessera/nn/weights_testing.h"

namespace tessera::nn::per_layer_embedding_test {
namespace {

using ops::gen;
using testing::HasSubstr;

constexpr int64_t kD = 6, kP = 3, kL = 4, kV = 7;

spec::Scope scope_of(int64_t layer, int64_t d_in) {
  register_mechanisms();
  spec::Scope scope;
  scope.d_model = kD;
  scope.d_in = d_in;
  scope.vocab = 9;
  scope.n_layers = kL;
  scope.layer = layer;
  scope.path = "ffn";
  return scope;
}

spec::AnyPart part_of(const std::string& more, int64_t d_in = 2 * kD) {
  return spec::read_part(
      spec::Slot::ffn,
      spec::parse_json(R"({"type": "per_layer_embedding", "width": 3, "vocab": 7)" + more + "}",
                       "test"),
      scope_of(0, d_in));
}

std::string refusal_of(const std::string& more, int64_t d_in = 2 * kD) {
  try {
    part_of(more, d_in);
    return "";
  } catch (const Error& e) {
    return e.what();
  }
}

TEST(PerLayerEmbedding, IsTheGatedVectorOfItsLayer) {
  const auto part = part_of(R"(, "act": "silu", "norm": {"type": "rms_norm", "eps": 0.1})");
  Values values;
  spec::ParamList list;
  part.config->params(list, scope_of(0, 2 * kD));
  draw_weights(list.all(), values);
  const std::string all = "shared.per_layer_embedding.";
  ASSERT_EQ(values.at(all + "token.weight").sizes(), (std::vector<int64_t>{kV, kL * kP}));

  // ids past the table use its first row
  const std::vector<int64_t> ids = {2, 6, 8, 0, 7}, rows = {2, 6, 0, 0, 0};
  const auto n = static_cast<int64_t>(ids.size());
  const Tensor x = gen({n, kD}, 0.7, 0.1), e = gen({n, kD}, 0.4, 0.3);
  const Batch batch = Batch::of(std::vector<std::vector<int64_t>>{ids});
  Context context;
  context.batch = &batch;
  for (const int64_t layer : {0, 1, 3}) {
    Tensor c = at::matmul(e, values.at("context.weight").t()) / std::sqrt(double{kD});
    c = c / (c.square().mean(-1, true) + 0.1).sqrt() * values.at(all + "norm.weight");
    const Tensor t = values.at(all + "token.weight")
                         .narrow(1, layer * kP, kP)
                         .index_select(0, at::tensor(rows, at::kLong)) *
                     std::sqrt(double{kP});
    const Tensor p = (c + t) / std::sqrt(2.0);
    const Tensor want =
        at::matmul(at::silu(at::matmul(x, values.at("gate.weight").t())) * p,
                   values.at("out.weight").t());
    const auto ffn = build_ffn(
        part, Builder(weights_from(values), "", scope_of(layer, 2 * kD)));
    ops::expect_near(ffn->forward(at::cat({x, e}, -1), context), want, 1e-12);
  }
}

TEST(PerLayerEmbedding, IsRefusedWhereItDoesNotFit) {
  EXPECT_EQ(refusal_of(""), "");
  EXPECT_EQ(refusal_of("", 0), "");
  EXPECT_THAT(refusal_of("", 3 * kD), HasSubstr("\"inputs\": [\"stream\", \"embedding\"]"));
  EXPECT_THAT(refusal_of(R"(, "norm": null)"), HasSubstr("expected a norm"));
  try {
    spec::read_part(
        spec::Slot::ffn,
        spec::parse_json(
            R"({"type": "chunked", "inner": {"type": "per_layer_embedding", "width": 3}})", "test"),
        scope_of(0, 0));
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("reads the ids of a whole call"));
  }
}

}  // namespace
}  // namespace tessera::nn::per_layer_embedding_test
