// Token embeddings of several tokens side by side and norms of the token's part, against the
// definition.
#include <gtest/gtest.h>

#include "tessera/base/testing.h"
#include "tessera/nn/context.h"
#include "tessera/nn/registry.h"
#include "tessera/nn/weights_testing.h"

namespace tessera::nn::token_embed_test {
namespace {

using ops::gen;

spec::Scope scope_of(bool causal) {
  register_mechanisms();
  spec::Scope scope;
  scope.d_model = 4;
  scope.vocab = 7;
  scope.causal = causal;
  scope.path = "embed";
  return scope;
}

spec::AnyPart part_of(const char* json, bool causal = false) {
  return spec::read_part(spec::Slot::embed, spec::parse_json(json, "test"), scope_of(causal));
}

Tensor embedded(const char* json, const Values& values, const Batch& batch, at::ScalarType type) {
  Context context;
  context.batch = &batch;
  context.causal = false;
  return build_embed(part_of(json), Builder(weights_from(values, type), "", scope_of(false)))
      ->forward(context, nullptr);
}

TEST(TokenEmbed, AnNgramIsTheTokensAroundWithinADocument) {
  const Values values = {{"token.weight", gen({7, 3}, 0.7, 0.2)},
                         {"project.weight", gen({4, 9}, 0.3, 0.5)},
                         {"project.bias", gen({4}, 0.9, 0.1)}};
  const Batch batch = Batch::of({{2, 5, 1}, {6}});
  const Tensor e = values.at("token.weight"), zero = at::zeros({3}, at::kDouble);
  // the following token first
  const Tensor read = at::stack({at::cat({e[5], e[2], zero}), at::cat({e[1], e[5], e[2]}),
                                 at::cat({zero, e[1], e[5]}), at::cat({zero, e[6], zero})});
  const Tensor want =
      at::matmul(read, values.at("project.weight").t()) + values.at("project.bias");
  ops::expect_both(
      [&](at::ScalarType type) {
        return embedded(R"({"type": "token", "width": 3, "project": "token", "ngram": 3})", values,
                        batch, type);
      },
      want, 1e-12);
}

TEST(TokenEmbed, ANormOfTheTokenLeavesPositionsAsTheyAre) {
  const Values values = {{"token.weight", gen({7, 4}, 0.7, 0.2)},
                         {"position.weight", gen({5, 4}, 0.4, 0.3)},
                         {"norm.weight", gen({4}, 0.8, 0.6)},
                         {"norm.bias", gen({4}, 0.2, 0.9)}};
  const Batch batch = Batch::of({{2, 5, 1}});
  const Tensor normed = at::layer_norm(
      values.at("token.weight").index_select(0, at::tensor({2, 5, 1}, at::kLong)) * 1.5, {4},
      values.at("norm.weight"), values.at("norm.bias"), 1e-5);
  ops::expect_both(
      [&](at::ScalarType type) {
        return embedded(R"({"type": "token", "scale": 1.5, "norm": "layer_norm", "norm_of": "token",
                            "position": {"type": "learned", "n_positions": 5}})",
                        values, batch, type);
      },
      normed + values.at("position.weight").narrow(0, 0, 3), 1e-12);
}

TEST(TokenEmbed, NgramsNeedAnEncoderAndAProjection) {
  const auto refused = [](const char* text, const char* json, bool causal = false) {
    test::expect_error(ErrorKind::spec, text, [&] { part_of(json, causal); });
  };
  refused("ngram = 3 needs an encoder",
          R"({"type": "token", "width": 3, "project": "token", "ngram": 3})", true);
  refused("ngram = 3 needs \"project\": \"token\"", R"({"type": "token", "ngram": 3})");
  refused("ngram = 2; expected an odd number",
          R"({"type": "token", "width": 3, "project": "token", "ngram": 2})");
  refused("norm_of token without a norm", R"({"type": "token", "norm_of": "token"})");
}

}  // namespace
}  // namespace tessera::nn::token_embed_test
