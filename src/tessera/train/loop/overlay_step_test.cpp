// A step of training through a real file whose weights stay frozen as they lie there: SmolLM2 in
// Q4_1, which TESSERA_SMOLLM2 names. Skipped without it.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "tessera/infer/loading/load_model.h"
#include "tessera/model/weight_adapter.h"
#include "tessera/ops/live_bytes_testing.h"
#include "tessera/train/objective/loss.h"

namespace tessera::train::overlay_step_test {
namespace {

/// Overlays on a model, and steps of plain gradient descent on them.
class Tuning {
 public:
  explicit Tuning(const model::Model& base)
      : overlays_(model::fresh_overlays(base.spec(), {{"", 8, 16}}, 7)),
        model_(model::with_adapters(base, overlays_)) {}

  int64_t gradient_bytes() const {
    int64_t bytes = 0;
    for (const Tensor& t : trained()) bytes += static_cast<int64_t>(t.nbytes());
    return bytes;
  }

  struct Step {
    double loss = 0;
    int64_t most = 0;  // bytes of tensors, beyond what there was before
  };
  Step step(const std::vector<int64_t>& ids) const {
    for (const Tensor& t : trained()) t.mutable_grad().reset();
    ops::LiveBytes live;
    const auto n = std::ssize(ids);
    const nn::Batch batch = nn::Batch::of(std::vector<std::vector<int64_t>>{ids});
    std::vector<int64_t> next(ids.begin() + 1, ids.end());
    next.push_back(-1);
    model::ForwardOptions options;
    options.training = true;
    const Tensor hidden = model_.hidden(batch, options);
    const double sum = loss_and_backward(model_, hidden, at::tensor(next, at::kLong),
                                         {.scale = 1 / static_cast<double>(n - 1)})
                           .nll;
    const at::NoGradGuard no_gradients;
    for (const Tensor& t : trained()) Tensor(t).sub_(t.grad(), 0.02);
    return {sum / static_cast<double>(n - 1), live.most()};
  }

 private:
  std::vector<Tensor> trained() const {
    std::vector<Tensor> all;
    for (const model::WeightAdapter& overlay : overlays_)
      for (const WeightPtr* weight : {&overlay.a, &overlay.b})
        all.push_back((*weight)->dense_tensor());
    return all;
  }
  using WeightPtr = nn::WeightPtr;

  std::vector<model::WeightAdapter> overlays_;
  model::Model model_;
};

TEST(OverlayStep, OnARealFileKeepsNoFloatCopyOfItsWeights) {
  const char* path = std::getenv("TESSERA_SMOLLM2");
  if (path == nullptr || !std::filesystem::exists(path))
    GTEST_SKIP() << "TESSERA_SMOLLM2 does not name the GGUF file";
  const infer::LoadedModel loaded = infer::load_model(path);
  const int64_t stored = loaded.model.weights().bytes();
  ASSERT_GT(stored, 80 << 20);
  const Tuning tuning(loaded.model);
  const std::string text =
      "The overlay learns what this sentence says, and the file stays as it is. ";
  const auto some = loaded.tokenizer->encode(text + text + text + text, {.add_special = false});
  ASSERT_GE(some.size(), 48u);
  const auto ids_of = [&](int64_t n) {
    return std::vector<int64_t>(some.begin(), some.begin() + n);
  };
  // activations are what grows with the tokens; what does not grow would be copies of weights
  constexpr int64_t kTokens = 24;
  tuning.step(ids_of(kTokens));  // what is made once
  const Tuning::Step one = tuning.step(ids_of(kTokens)), two = tuning.step(ids_of(2 * kTokens));
  const int64_t activations = two.most - one.most;
  ASSERT_GT(activations, 0);
  EXPECT_LT(static_cast<double>(stored + one.most),
            1.3 * static_cast<double>(stored) + static_cast<double>(activations))
      << "file " << stored << ", most beyond it " << one.most << " and " << two.most
      << ", gradients " << tuning.gradient_bytes();
  // and the step is one of learning
  double last = 0;
  for (int i = 0; i < 4; ++i) last = tuning.step(ids_of(2 * kTokens)).loss;
  EXPECT_LT(last, two.loss);
}

}  // namespace
}  // namespace tessera::train::overlay_step_test
