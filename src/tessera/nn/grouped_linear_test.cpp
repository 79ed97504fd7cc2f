// Products in groups of channels: what whole block-diagonal matrices give, and their refusals.
#include "tessera/nn/grouped_linear.h"

#include "tessera/base/testing.h"
#include "tessera/nn/mixer/mixer_testing.h"

namespace tessera::nn::grouped_linear_test {
namespace {

/// The whole matrix of blocks [out, in / groups].
Tensor whole_of(const Tensor& blocks, int64_t groups) {
  std::vector<Tensor> parts = blocks.chunk(groups, 0);
  return at::block_diag(parts);
}

TEST(GroupedLinear, AttentionInGroupsIsThatOfBlockDiagonalMatrices) {
  const std::string rest =
      R"("n_heads": 2, "bias": {"q": true, "k": true, "v": true, "o": true})";
  const std::map<std::string, int64_t> groups = {{"q", 4}, {"k", 2}, {"v", 8}, {"o", 2}};
  MixerUnderTest mixer(
      R"({"type": "attention", "groups": {"q": 4, "k": 2, "v": 8, "o": 2}, )" + rest + "}", 8);
  mixer.fill();
  MixerUnderTest whole(R"({"type": "attention", )" + rest + "}", 8);
  whole.values = mixer.values;
  for (const auto& [name, n] : groups) {
    EXPECT_EQ(mixer.values.at(name + ".weight").size(1), 8 / n);
    whole.values[name + ".weight"] = whole_of(mixer.values.at(name + ".weight"), n);
  }
  const Tensor x = golden_input(6, 8);
  mixer.expect_everywhere(x, whole.run(x, at::kDouble), 1e-12);
}

TEST(GroupedLinear, FeedForwardInGroupsIsThatOfBlockDiagonalMatrices) {
  register_mechanisms();
  const auto run = [&](const char* json, const Values& values, at::ScalarType type) {
    spec::Scope scope;
    scope.d_model = 8;
    const auto part = spec::read_part(spec::Slot::ffn, spec::parse_json(json, "test"), scope);
    Context context;
    return build_ffn(part, Builder(weights_from(values, type), "", scope))
        ->forward(golden_input(5, 8).to(type), context);
  };
  Values values = {{"up.weight", ops::gen({12, 2}, 0.37, 0.1)},
                   {"up.bias", ops::gen({12}, 0.43, 0.3)},
                   {"down.weight", ops::gen({8, 6}, 0.49, 0.5)},
                   {"down.bias", ops::gen({8}, 0.55, 0.7)}};
  Values whole = values;
  whole["up.weight"] = whole_of(values.at("up.weight"), 4);
  whole["down.weight"] = whole_of(values.at("down.weight"), 2);
  const Tensor want = run(R"({"type": "mlp", "d_hidden": 12})", whole, at::kDouble);
  ops::expect_both(
      [&](at::ScalarType type) {
        return run(R"({"type": "mlp", "d_hidden": 12, "groups": {"up": 4, "down": 2}})", values,
                   type);
      },
      want, 1e-12);
}

TEST(GroupedLinear, GroupsDivideWhatAProductMakesAndReads) {
  test::expect_error(ErrorKind::spec, "q = 3 does not divide 8 channels", [] {
    MixerUnderTest(R"({"type": "attention", "n_heads": 2, "groups": {"q": 3}})", 8);
  });
}

TEST(GroupedLinear, ExpertsAreWholeMatrices) {
  register_mechanisms();
  spec::Scope scope;
  scope.d_model = 8;
  test::expect_error(ErrorKind::spec, "\"mlp\" cannot be an expert: its up.weight", [&] {
    spec::read_part(spec::Slot::ffn,
                    spec::parse_json(R"({"type": "moe", "n_experts": 4, "expert": {"type": "mlp",
                                         "d_hidden": 12, "groups": {"up": 4}}})",
                                     "test"),
                    scope);
  });
}

}  // namespace
}  // namespace tessera::nn::grouped_linear_test
