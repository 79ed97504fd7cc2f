// Models with reversible residuals: gradients, memory, widths, decoding.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/testing.h"
#include "tessera/model/large_weights_testing.h"
#include "tessera/model/plan.h"
#include "tessera/ops/live_bytes_testing.h"
#include "tessera/ops/ops_testing.h"

namespace tessera::model::reversible_test {
namespace {

using testing::HasSubstr;

Json tiny(const std::string& more) {
  Json json = spec::parse_json(R"({"tessera": 1, "arch": "decoder", "vocab": 17, "d_model": 8,
      "residual": {"type": "reversible", "dropout": 0.2}, "layers": [{"repeat": 2}], "head": "linear",
      "mixer": {"type": "attention", "n_heads": 2, "position": "rope"},
      "ffn": {"type": "mlp", "d_hidden": 12}})",
                               "test");
  json.merge_patch(spec::parse_json(more, "test"));
  return json;
}

Model make_model(const Json& json) {
  const ModelSpec spec = read_model_spec(json);
  return {spec, large_weights(spec, 5, 15, at::kDouble)};
}

const std::vector<std::vector<int64_t>> kRows = {{3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5},
                                                 {2, 7, 1, 8, 2}};

/// Gradients by name of a sum over the hidden states of documents in training, with the activations
/// kept or computed again. What the call read is gone before the backward pass.
std::map<std::string, Tensor> gradients(const Model& model, bool kept) {
  Tensor loss;
  {
    std::optional<nn::Encoded> encoded;
    ForwardOptions options;
    options.training = true;
    options.key = RandomKey(3);
    if (model.spec().encoder) {
      encoded = model.encode(nn::Batch::of(kRows));
      options.encoded = &*encoded;
    }
    options.add_loss = [&](const std::string&, const Tensor& own) {
      loss = loss.defined() ? loss + own : own;
    };
    // a call whose inputs are replaced is not run again
    if (kept) options.replace = [](const std::string&, const Tensor& x) { return x; };
    const Tensor h = model.hidden(nn::Batch::of(kRows), options);
    const Tensor sum = (h * ops::gen(h.sizes().vec(), 0.31, 0.2)).sum();
    loss = loss.defined() ? loss + sum : sum;
  }
  loss.backward();
  std::map<std::string, Tensor> out;
  for (const auto& [decl, weight] : model.weights().all()) {
    out[decl.name] = weight->dense_tensor().grad();
    weight->dense_tensor().mutable_grad() = Tensor();
  }
  return out;
}

TEST(ReversibleModel, GradientsAreThoseOfStoredActivations) {
  for (
      const char* more :
      {R"({})", R"({"residual": {"merge": "concat"}})",
       // values and tables that layers share
       R"({"layers": [{"repeat": 3}], "mixer": {"type": "rwkv7", "n_heads": 2, "position": null}})",
       R"({"mixer": {"position": {"type": "t5", "share": "bias"}}})",
       R"({"arch": "encoder", "mixer": {"position": {"type": "deberta", "max_relative": 6, "share": "table"}}})",
       R"({"arch": "encoder", "mixer": {"position": {"type": "tupe", "n_positions": 16, "share": "table"}}})",
       // buckets, selections, losses of a part
       R"({"mixer": {"type": "lsh_attention", "chunk": 2, "n_hashes": 2, "position": null}})",
       R"({"mixer": {"type": "native_sparse_attention", "block": 2, "stride": 1, "select_block": 2, "n_selected": 3, "n_initial": 1, "n_local": 1, "window": 3}})",
       R"({"mixer": {"type": "compressive", "segment": 4, "mem_len": 3, "n_compressed": 2, "rate": 2, "position": "xl"}})",
       // recurrences, one set of parameters twice, several branches, a slice inside
       R"({"mixer": {"type": "mamba2", "position": null}, "ffn": null})",
       R"({"layers": [{"repeat": 3, "share": "all"}]})",
       R"({"ffn": {"type": "chunked", "chunk": 3, "d_hidden": null, "inner": {"type": "glu", "d_hidden": 10}}})",
       R"({"layers": [{}, {"residual": "pre_norm"}, {}]})",
       R"({"arch": "encoder_decoder", "start": 1, "layers": null,
            "cross": {"type": "cross_attention", "n_heads": 2},
            "stacks": {"encoder": {"layers": [{}]}, "decoder": {"layers": [{"repeat": 2}]}}})"}) {
    const Model model = make_model(tiny(more));
    const auto want = gradients(model, true), got = gradients(model, false);
    for (const auto& [name, gradient] : want) {
      if (!gradient.defined()) {
        EXPECT_FALSE(got.at(name).defined() && got.at(name).any().item<bool>()) << more << name;
        continue;
      }
      ASSERT_TRUE(got.at(name).defined()) << more << " " << name;
      ops::expect_near(got.at(name), gradient, 1e-9 * (1 + gradient.abs().max().item<double>()),
                       (more + (" " + name)).c_str());
    }
  }
}

/// Bytes that wait for the backward pass, and the most there were, of one call in training.
std::pair<int64_t, int64_t> memory(const std::string& residual, int64_t depth) {
  Json json = tiny(R"({"d_model": 32, "ffn": {"d_hidden": 128}})");
  json["residual"] = residual;
  json["layers"] = Json::array({{{"repeat", depth}}});
  const Model model = make_model(json);
  // the gradients of parameters are there already
  for (const auto& [decl, weight] : model.weights().all())
    weight->dense_tensor().mutable_grad() = at::zeros_like(weight->dense_tensor());
  const nn::Batch batch = nn::Batch::of(at::ones({2, 64}, at::kLong));
  ops::LiveBytes live;
  ForwardOptions options;
  options.training = true;
  const Tensor h = model.hidden(batch, options);
  const int64_t kept = live.now();
  live.forget_most();
  h.sum().backward();
  return {kept, live.most()};
}

TEST(ReversibleModel, MemoryBetweenThePassesDoesNotGrowWithTheDepth) {
  const auto [two, most_of_two] = memory("reversible", 2);
  const auto [ten, most_of_ten] = memory("reversible", 10);
  // indices of a few bytes may be kept, of which no tensor of the stream consists
  constexpr int64_t kStream = 2 * 64 * 32 * 8;
  EXPECT_LT(ten - two, kStream / 16);
  EXPECT_LT(most_of_ten - most_of_two, kStream / 16);
  const auto [kept_of_two, most_kept_of_two] = memory("pre_norm", 2);
  const auto [kept_of_ten, most_kept_of_ten] = memory("pre_norm", 10);
  EXPECT_GT(kept_of_ten - kept_of_two, 8 * 10 * kStream);
  EXPECT_GT(most_kept_of_ten - most_kept_of_two, 8 * 10 * kStream);
}

TEST(ReversibleModel, HiddenStatesAreAsWideAsTheMergeLeavesThem) {
  const ModelSpec mean = read_model_spec(tiny("{}")),
                  wide = read_model_spec(tiny(R"({"residual": {"merge": "concat"}})"));
  EXPECT_EQ(mean.width_out(), 8);
  EXPECT_EQ(wide.width_out(), 16);
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const spec::ParamDecl& decl : parameters(wide)) shapes[decl.name] = decl.shape;
  EXPECT_EQ(shapes.at("final_norm.weight"), (std::vector<int64_t>{16}));
  EXPECT_EQ(shapes.at("head.weight"), (std::vector<int64_t>{17, 16}));
  EXPECT_EQ(shapes.at("layers.1.ffn_norm.weight"), (std::vector<int64_t>{8}));
  EXPECT_EQ(make_plan(wide, 5).parameters - make_plan(mean, 5).parameters, 8 + 17 * 8);
  EXPECT_EQ(make_plan(wide, 5).flops_per_token - make_plan(mean, 5).flops_per_token, 2 * 17 * 8);

  const Model model = make_model(tiny(R"({"residual": {"merge": "concat"}})"));
  const Tensor h = model.hidden(nn::Batch::of(kRows));
  EXPECT_EQ(h.sizes().vec(), (std::vector<int64_t>{16, 16}));
  EXPECT_EQ(model.logits(h).sizes().vec(), (std::vector<int64_t>{16, 17}));
}

TEST(ReversibleModel, RunsBeginAndEndWhereTheResidualChanges) {
  const at::NoGradGuard no_gradients;
  const Model model = make_model(
      tiny(R"({"layers": [{"residual": "pre_norm"}, {"mixer": null}, {"residual": "pre_norm"}]})"));
  std::map<std::string, Tensor> seen;
  ForwardOptions options;
  options.probe = [&](const std::string& name, const Tensor& x) { seen[name] = x; };
  model.hidden(nn::Batch::of(kRows), options);
  const Tensor x = seen["embed"] + seen["layers.0.mixer.out"] + seen["layers.0.ffn.out"];
  // both streams are x in front of the one branch, which adds to one of them
  const Tensor y =
      x + seen["layers.1.ffn.out"] * 0.5 + seen["layers.2.mixer.out"] + seen["layers.2.ffn.out"];
  const Tensor mean_square = y.square().mean(-1, true);
  ops::expect_near(seen["final"], y / (mean_square + 1e-6).sqrt(), 1e-12);
}

TEST(ReversibleModel, OneStreamCannotFollowTwoSideBySide) {
  const auto error = [](const char* json) {
    return test::error_of(ErrorKind::spec, [&] { read_model_spec(tiny(json)); });
  };
  EXPECT_THAT(error(R"({"layers": [{"residual": {"type": "reversible", "merge": "concat"}},
                 {"residual": "pre_norm"}]})"),
              AllOf(HasSubstr("[layers[1].residual]"), HasSubstr("\"merge\": \"mean\"")));
  // a tied head says what it needs
  EXPECT_THAT(error(R"({"residual": {"merge": "concat"}, "head": "tied"})"),
              HasSubstr("\"width\": 8"));
}

}  // namespace
}  // namespace tessera::model::reversible_test
