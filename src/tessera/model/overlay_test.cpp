#include "tessera/model/overlay.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

namespace tessera::model::overlay_test {
namespace {

ModelSpec tiny() {
  return read_model_spec(spec::parse_json(R"({
    "tessera": 1, "arch": "decoder", "vocab": 50, "d_model": 16,
    "layers": [{"repeat": 2, "mixer": {"type": "attention", "n_heads": 2, "n_kv_heads": 1}}],
    "ffn": {"type": "glu", "d_hidden": 24}})",
                                          "tiny"));
}

Tensor logits(const Model& model) {
  const nn::Batch batch = nn::Batch::of(at::tensor({3, 1, 4, 1, 5, 9}, at::kLong).reshape({1, 6}));
  return model.logits(model.hidden(batch));
}

/// B of other numbers than zero.
void draw(const std::vector<Overlay>& overlays) {
  const at::NoGradGuard guard;
  for (const Overlay& overlay : overlays) Tensor(overlay.b->dense_tensor()).fill_(0.125);
}

TEST(Overlay, FreshOnesLeaveTheModelAsItIs) {
  const Model model(tiny(), Weights::initial(tiny(), 1));
  const auto overlays = fresh_overlays(model.spec(), {{"", 4, 8}}, 7);
  EXPECT_EQ(overlays.size(), 2u * (4 + 3));  // q, k, v, o and gate, up, down
  const at::NoGradGuard guard;
  EXPECT_TRUE(at::allclose(logits(with_overlays(model, overlays)), logits(model), 1e-6, 1e-6));
}

TEST(Overlay, EqualsTheModelOfTheMergedWeights) {
  const Model model(tiny(), Weights::initial(tiny(), 1));
  const auto overlays = fresh_overlays(model.spec(), {{"mixer.q", 4, 8}, {"up", 2, 2}}, 7);
  EXPECT_EQ(overlays.size(), 4u);
  EXPECT_DOUBLE_EQ(overlays[0].scale, 2);
  draw(overlays);
  std::map<std::string, WeightPtr> weights;
  for (const auto& [decl, weight] : model.weights().all()) weights[decl.name] = weight;
  for (const Overlay& overlay : overlays)
    weights[overlay.weight] = std::make_shared<const ops::Weight>(
        ops::Weight::dense(overlay.weight, merged(model.weights(), overlay)));
  const Model by_hand(tiny(), Weights::check(tiny(), weights));
  const at::NoGradGuard guard;
  const Tensor got = logits(with_overlays(model, overlays));
  EXPECT_TRUE(at::allclose(got, logits(by_hand), 1e-5, 1e-5));
  EXPECT_GT((got - logits(model)).abs().max().item<double>(), 1e-3);
}

TEST(Overlay, GradientsReachItAndNotTheFrozenModel) {
  std::map<std::string, WeightPtr> frozen;
  const Weights fresh = Weights::initial(tiny(), 1);
  for (const auto& [decl, weight] : fresh.all())
    frozen[decl.name] = std::make_shared<const ops::Weight>(weight->converted(DType::bf16));
  const Model model(tiny(), Weights::check(tiny(), frozen));
  const auto overlays = fresh_overlays(model.spec(), {{"q", 4, 8}}, 7);
  draw(overlays);
  logits(with_overlays(model, overlays)).square().sum().backward();
  for (const Overlay& overlay : overlays) {
    EXPECT_GT(overlay.a->dense_tensor().grad().abs().max().item<double>(), 0) << overlay.weight;
    EXPECT_GT(overlay.b->dense_tensor().grad().abs().max().item<double>(), 0) << overlay.weight;
  }
}

TEST(Overlay, RefusesWhatItCannotAdapt) {
  const Model model(tiny(), Weights::initial(tiny(), 1));
  EXPECT_THROW(fresh_overlays(model.spec(), {{"nothing", 4, 8}}, 7), Error);
  EXPECT_THROW(fresh_overlays(model.spec(), {{"q", 17, 8}}, 7), Error);
  EXPECT_THROW(fresh_overlays(model.spec(), {{"q", 0, 8}}, 7), Error);
  auto overlays = fresh_overlays(model.spec(), {{"layers.0.mixer.q", 4, 8}}, 7);
  ASSERT_EQ(overlays.size(), 1u);
  EXPECT_THROW(with_overlays(with_overlays(model, overlays), overlays), Error);
  overlays[0].weight = "layers.9.mixer.q.weight";
  EXPECT_THROW(with_overlays(model, overlays), Error);
  overlays[0].weight = "layers.0.mixer.k.weight";
  EXPECT_THROW(with_overlays(model, overlays), Error);
}

TEST(Weights, APartThatAsksForWhatNoneDeclaresFails) {
  const Weights weights = Weights::initial(tiny(), 1);
  EXPECT_NE(weights.asked("layers.0.mixer.q.weight"), nullptr);
  EXPECT_EQ(weights.asked("layers.0.mixer.q.bias"), nullptr);  // declared to be absent
  EXPECT_THROW(weights.asked("layers.0.mixer.q.bais"), Error);
}

}  // namespace
}  // namespace tessera::model::overlay_test
