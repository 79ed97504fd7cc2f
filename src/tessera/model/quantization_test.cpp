// Products with rounded operands in whole models: training and inference compute the same function.
#include <gtest/gtest.h>

#include "tessera/model/model.h"
#include "tessera/model/state.h"

namespace tessera::model::quantization_test {
namespace {

ModelSpec spec_of(const std::string& quantization) {
  return read_model_spec(spec::parse_json(
      R"({"tessera": 1, "arch": "decoder", "vocab": 19, "d_model": 32, "quantization": )" +
          quantization + R"(, "layers": [{"repeat": 2,
          "mixer": {"type": "attention", "n_heads": 4, "inner_norm": "rms_norm", "position": "rope"},
          "ffn": {"type": "glu", "act": "relu2", "d_hidden": 40, "inner_norm": "rms_norm"}}],
        "head": "tied"})",
      "test"));
}

/// The same numbers, not to be trained.
Weights frozen(const ModelSpec& spec, const Weights& weights) {
  std::map<std::string, nn::WeightPtr> out;
  for (const auto& [decl, weight] : weights.all())
    out[decl.name] = std::make_shared<const ops::Weight>(
        ops::Weight::dense(decl.name, weight->tensor().detach().clone()));
  return Weights::check(spec, std::move(out));
}

const std::vector<int64_t> kIds = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5};

// blocks of 32 numbers, and floats where 40 are no whole blocks
TEST(Quantization, InferenceComputesWhatIsTrained) {
  for (const char* quantization :
       {"{}", R"({"activations": "float"})", R"({"weights": "stored"})"}) {
    const ModelSpec spec = spec_of(quantization);
    const Model trained(spec, Weights::initial(spec, 3)),
        fixed(spec, frozen(spec, trained.weights()));
    const Tensor with_gradients = trained.hidden(nn::Batch::of({kIds}));
    const at::NoGradGuard no_gradients;
    const Tensor whole = fixed.hidden(nn::Batch::of({kIds}));
    const double size = whole.abs().max().item<double>();
    EXPECT_LT((trained.hidden(nn::Batch::of({kIds})) - whole).abs().max().item<double>(),
              2e-5 * size)
        << quantization;
    EXPECT_LT((with_gradients - whole).abs().max().item<double>(), 2e-5 * size) << quantization;
    // token by token
    State state(fixed.spec(), 1);
    for (size_t t = 0; t < kIds.size(); ++t) {
      ForwardOptions options;
      options.state = &state;
      const Tensor step = fixed.hidden(nn::Batch::of({{kIds[t]}}, {state.length(0)}), options);
      EXPECT_TRUE(at::equal(step, whole.narrow(0, static_cast<int64_t>(t), 1)))
          << quantization << t;
    }
  }
}

TEST(Quantization, EveryMatrixHasAGradient) {
  const ModelSpec spec = spec_of("{}");
  const Model model(spec, Weights::initial(spec, 3));
  model.hidden(nn::Batch::of({kIds})).square().sum().backward();
  for (const auto& [decl, weight] : model.weights().all()) {
    ASSERT_TRUE(weight->dense_tensor().grad().defined()) << decl.name;
    EXPECT_GT(weight->dense_tensor().grad().abs().max().item<double>(), 0) << decl.name;
  }
}

}  // namespace
}  // namespace tessera::model::quantization_test
