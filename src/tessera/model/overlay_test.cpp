#include "tessera/model/overlay.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "tessera/base/testing.h"
#include "tessera/nn/dropout.h"
#include "tessera/nn/rerun.h"

namespace tessera::model::overlay_test {
namespace {

ModelSpec tiny(const std::string& ffn = R"({"type": "glu", "d_hidden": 24})") {
  return read_model_spec(spec::parse_json(R"({
    "tessera": 1, "arch": "decoder", "vocab": 50, "d_model": 16,
    "layers": [{"repeat": 2, "mixer": {"type": "attention", "n_heads": 2, "n_kv_heads": 1}}],
    "ffn": )" + ffn + "}",
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

// --- experts -------------------------------------------------------------------------------------

constexpr const char* kMoe = R"({"type": "moe", "n_experts": 3, "router": {"type": "top_k", "k": 2},
    "expert": {"type": "glu", "d_hidden": 24}})";

/// B and A of numbers that differ from expert to expert.
void draw_all(const std::vector<Overlay>& overlays) {
  const at::NoGradGuard guard;
  for (const Overlay& overlay : overlays)
    for (const WeightPtr& part : {overlay.a, overlay.b}) {
      Tensor tensor = part->dense_tensor();
      tensor.copy_(at::sin(at::arange(tensor.numel(), at::kFloat) * 0.7).reshape(tensor.sizes()));
    }
}

TEST(OverlayOfExperts, EachHasItsOwn) {
  const ModelSpec spec = tiny(kMoe);
  const Model model(spec, Weights::initial(spec, 1));
  const auto overlays = fresh_overlays(spec, {{"", 2, 8}}, 7);
  EXPECT_EQ(overlays.size(), 2U * (4 + 1 + 3));  // q, k, v, o, the router, gate, up, down
  {
    const at::NoGradGuard guard;
    EXPECT_TRUE(at::allclose(logits(with_overlays(model, overlays)), logits(model), 1e-6, 1e-6));
  }
  const auto of_experts = fresh_overlays(spec, {{"experts.up", 4, 8}, {"experts.down", 3, 3}}, 7);
  ASSERT_EQ(of_experts.size(), 4U);
  EXPECT_EQ(of_experts[0].a->shape(), (std::vector<int64_t>{3, 4, 16}));
  EXPECT_EQ(of_experts[0].b->shape(), (std::vector<int64_t>{3, 24, 4}));
  EXPECT_FALSE(at::equal(of_experts[0].a->tensor()[0], of_experts[0].a->tensor()[1]));
}

TEST(OverlayOfExperts, EqualsTheModelOfTheMergedWeights) {
  const ModelSpec spec = tiny(kMoe);
  for (const DType storage : {DType::f32, DType::q8_0}) {
    std::map<std::string, WeightPtr> frozen;
    const Weights fresh = Weights::initial(spec, 1);
    for (const auto& [decl, weight] : fresh.all())
      frozen[decl.name] = storage == DType::q8_0 &&
                                  decl.name.find(".experts.") != std::string::npos &&
                                  decl.shape.back() % 32 == 0
                              ? std::make_shared<const ops::Weight>(weight->converted(storage))
                              : std::make_shared<const ops::Weight>(
                                    ops::Weight::dense(decl.name, weight->tensor().detach()));
    const Model model(spec, Weights::check(spec, frozen));
    const auto overlays = fresh_overlays(spec, {{"experts.up", 4, 2}, {"experts.down", 3, 1}}, 7);
    draw_all(overlays);
    // W + s B A of every expert, as parameters of their own
    std::map<std::string, WeightPtr> weights = frozen;
    std::map<std::string, Tensor> by_hand;
    for (const Overlay& overlay : overlays) {
      const Tensor w = model.weights().find(overlay.weight)->tensor();
      std::vector<Tensor> experts;
      for (int64_t e = 0; e < 3; ++e)
        experts.push_back(w[e] + overlay.scale * at::matmul(overlay.b->tensor().detach()[e],
                                                            overlay.a->tensor().detach()[e]));
      by_hand[overlay.weight] = at::stack(experts).requires_grad_(true);
      EXPECT_TRUE(
          at::allclose(merged(model.weights(), overlay), by_hand[overlay.weight], 1e-5, 1e-6));
      weights[overlay.weight] = std::make_shared<const ops::Weight>(
          ops::Weight::dense(overlay.weight, by_hand[overlay.weight]));
    }
    const Model plain(spec, Weights::check(spec, weights)),
        adapted = with_overlays(model, overlays);
    const Tensor got = logits(adapted), want = logits(plain);
    EXPECT_TRUE(at::allclose(got, want, 1e-4, 1e-5));
    EXPECT_GT((got - logits(model)).abs().max().item<double>(), 1e-3);
    {
      const at::NoGradGuard guard;
      EXPECT_TRUE(at::allclose(logits(adapted), got, 1e-4, 1e-5));
    }
    // dB = s dW A^T, dA = s B^T dW
    got.square().sum().backward();
    want.square().sum().backward();
    for (const Overlay& overlay : overlays) {
      const Tensor dw = by_hand.at(overlay.weight).grad();
      const Tensor a = overlay.a->tensor().detach(), b = overlay.b->tensor().detach();
      const Tensor db = overlay.scale * at::bmm(dw, a.transpose(1, 2)),
                   da = overlay.scale * at::bmm(b.transpose(1, 2), dw);
      const auto near = [](const Tensor& x, const Tensor& y) {
        return (x - y).norm().item<double>() <= 1e-3 * y.norm().item<double>();
      };
      EXPECT_TRUE(near(overlay.b->dense_tensor().grad(), db)) << overlay.weight;
      EXPECT_TRUE(near(overlay.a->dense_tensor().grad(), da)) << overlay.weight;
    }
  }
}

// --- dropout -------------------------------------------------------------------------------------

const std::vector<std::vector<int64_t>> kDocuments = {{3, 1, 4, 1}, {5, 9, 2, 6, 5, 3, 5}};

/// The tiny model with drawn overlays everywhere.
Model with_dropout(double p) {
  const Model model(tiny(), Weights::initial(tiny(), 1));
  const auto overlays = fresh_overlays(model.spec(), {{"", 4, 8, p}}, 7);
  draw(overlays);
  return with_overlays(model, overlays);
}

Tensor hidden(const Model& model, const nn::Batch& batch, bool training, uint64_t key = 3) {
  ForwardOptions options;
  options.training = training;
  options.key = RandomKey(key);
  return model.hidden(batch, options).detach();
}

TEST(OverlayDropout, OfZeroOrOutsideTrainingIsNone) {
  const nn::Batch batch = nn::Batch::of(kDocuments);
  const Model none = with_dropout(0), half = with_dropout(0.5);
  const Tensor want = hidden(none, batch, false);
  EXPECT_TRUE(at::equal(hidden(none, batch, true), want));
  EXPECT_TRUE(at::equal(hidden(half, batch, false), want));
  EXPECT_GT((hidden(half, batch, true) - want).abs().max().item<double>(), 1e-2);
}

TEST(OverlayDropout, ASampleDropsTheSameInAnyBatch) {
  const Model model = with_dropout(0.5);
  const Tensor both = hidden(model, nn::Batch::of(kDocuments), true);
  const auto alone = [&](int64_t document, int64_t sample, uint64_t key) {
    nn::Batch batch = nn::Batch::of({kDocuments[static_cast<size_t>(document)]});
    batch.segments[0].sample = sample;
    return hidden(model, batch, true, key);
  };
  const Tensor second = both.narrow(0, 4, 7);
  EXPECT_TRUE(at::allclose(alone(0, 0, 3), both.narrow(0, 0, 4), 1e-5, 1e-5));
  EXPECT_TRUE(at::allclose(alone(1, 1, 3), second, 1e-5, 1e-5));
  // another sample or step draws others, as does a later place in the sample
  for (const Tensor& other : {alone(1, 0, 3), alone(1, 1, 4)})
    EXPECT_GT((other - second).abs().max().item<double>(), 1e-2);
  nn::Batch later = nn::Batch::of({kDocuments[1]});
  later.segments[0].sample = 1, later.segments[0].offset = 4;
  EXPECT_GT((hidden(model, later, true) - second).abs().max().item<double>(), 1e-2);
}

/// W = 0 with B A = I beside it: a product gives what A reads.
WeightPtr reader(const std::string& name, int64_t n, double p) {
  const auto dense = [&](Tensor t) {
    return std::make_shared<const ops::Weight>(ops::Weight::dense(name, std::move(t)));
  };
  return std::make_shared<const ops::Weight>(ops::Weight::adapted(
      dense(at::zeros({n, n})), dense(at::eye(n).requires_grad_(true)), dense(at::eye(n)), 1, p));
}

nn::Context training(const nn::Batch& batch) {
  nn::Context context;
  context.batch = &batch;
  context.training = true;
  context.key = RandomKey(3);
  return context;
}

TEST(OverlayDropout, LeavesTheExpectationAsItIs) {
  constexpr int64_t kTokens = 500, kWidth = 16;
  constexpr double kP = 0.25;
  const nn::Batch batch = nn::Batch::of(at::zeros({1, kTokens}, at::kLong));
  const Tensor x = at::sin(at::arange(kTokens * kWidth, at::kFloat)).reshape({kTokens, kWidth}) + 2;
  const auto read = [&](const std::string& name) {
    const ops::InputDrops drops(nn::input_drops(training(batch), batch));
    return ops::linear(x, *reader(name, kWidth, kP)).detach();
  };
  const Tensor y = read("a"), dropped = y == 0;
  EXPECT_TRUE(at::allclose(y, at::where(dropped, 0.0, x / (1 - kP)), 1e-6, 1e-6));
  // 8000 draws: three deviations are 0.015
  EXPECT_NEAR(dropped.to(at::kDouble).mean().item<double>(), kP, 0.015);
  EXPECT_NEAR(y.mean().item<double>(), x.mean().item<double>(), 0.05);
  // every matrix draws its own
  EXPECT_FALSE(at::equal(read("b") == 0, dropped));
  EXPECT_TRUE(at::equal(read("a"), y));
}

TEST(OverlayDropout, IsTheSameWhereThePassIsComputedAgain) {
  const nn::Batch batch = nn::Batch::of(kDocuments);
  const Tensor x = at::sin(at::arange(11 * 16, at::kFloat)).reshape({11, 16});
  const auto gradient = [&](bool again) {
    const std::vector<WeightPtr> weights{reader("w", 16, 0.5)};
    const auto body = [&](const Tensor& in, nn::Context&) {
      return ops::linear(in, *weights[0]).square();
    };
    nn::Context context = training(batch);
    Tensor y;
    {
      const ops::InputDrops drops(nn::input_drops(context, batch));
      const Tensor in = x.clone().requires_grad_(true);
      y = again ? nn::recomputed(body, weights, in, context) : body(in, context);
    }
    y.sum().backward();
    return weights[0]->parts()->a->dense_tensor().grad();
  };
  ASSERT_TRUE(gradient(true).defined());
  EXPECT_TRUE(at::equal(gradient(true), gradient(false)));
}

TEST(OverlayDropout, OfExpertsIsByTokenAndExpert) {
  const ModelSpec spec = tiny(kMoe);
  const Model model(spec, Weights::initial(spec, 1));
  const auto drop = [&](double p) {
    const auto overlays = fresh_overlays(spec, {{"experts.up", 4, 8, p}}, 7);
    draw_all(overlays);
    return with_overlays(model, overlays);
  };
  const Model half = drop(0.5);
  const Tensor both = hidden(half, nn::Batch::of(kDocuments), true);
  EXPECT_GT((both - hidden(drop(0), nn::Batch::of(kDocuments), true)).abs().max().item<double>(),
            1e-2);
  nn::Batch second = nn::Batch::of({kDocuments[1]});
  second.segments[0].sample = 1;
  EXPECT_TRUE(at::allclose(hidden(half, second, true), both.narrow(0, 4, 7), 1e-5, 1e-5));
}

TEST(OverlayDropout, RefusesRowsThatAreNoTokens) {
  const ModelSpec spec =
      tiny(R"({"type": "chunked", "chunk": 2, "inner": {"type": "glu", "d_hidden": 24}})");
  const Model model(spec, Weights::initial(spec, 1));
  const auto overlays = fresh_overlays(model.spec(), {{"up", 4, 8, 0.5}}, 7);
  test::expect_error(ErrorKind::usage, "reads 2 rows in a call of 11 tokens", [&] {
    hidden(with_overlays(model, overlays), nn::Batch::of(kDocuments), true);
  });
  for (const double bad : {-0.1, 1.0, std::nan("")})
    test::expect_error(ErrorKind::usage, "expected 0 to below 1", [&] {
      fresh_overlays(model.spec(), {{"up", 4, 8, bad}}, 7);
    });
}

TEST(Overlay, GradientsReachItThroughWhatIsComputedAgain) {
  const auto gradients = [&](const std::string& ffn) {
    const ModelSpec spec = tiny(ffn);
    std::map<std::string, WeightPtr> weights;
    const Weights fresh = Weights::initial(spec, 1);
    for (const auto& [decl, weight] : fresh.all())
      weights[decl.name] = std::make_shared<const ops::Weight>(ops::Weight::dense(
          decl.name, at::sin(at::arange(decl.elements(), at::kFloat) * 0.7).reshape(decl.shape)));
    const Model model(spec, Weights::check(spec, weights));
    auto overlays = fresh_overlays(model.spec(), {{"up", 4, 8}}, 7);
    for (const Overlay& overlay : overlays) {
      const at::NoGradGuard guard;
      Tensor(overlay.a->dense_tensor()).fill_(0.25);
    }
    draw(overlays);
    logits(with_overlays(model, overlays)).square().sum().backward();
    return std::pair{overlays[1].a->dense_tensor().grad(), overlays[0].b->dense_tensor().grad()};
  };
  const std::string glu = R"({"type": "glu", "d_hidden": 24})";
  const auto [a, b] = gradients(glu);
  const auto [a_again, b_again] =
      gradients(R"({"type": "chunked", "chunk": 4, "inner": )" + glu + "}");
  ASSERT_TRUE(a_again.defined() && b_again.defined());
  EXPECT_TRUE(at::allclose(a_again, a, 1e-4, 1e-4 * a.abs().max().item<double>()));
  EXPECT_TRUE(at::allclose(b_again, b, 1e-4, 1e-4 * b.abs().max().item<double>()));
}

TEST(Weights, APartThatAsksForWhatNoneDeclaresFails) {
  const Weights weights = Weights::initial(tiny(), 1);
  EXPECT_NE(weights.asked("layers.0.mixer.q.weight"), nullptr);
  EXPECT_EQ(weights.asked("layers.0.mixer.q.bias"), nullptr);  // declared to be absent
  EXPECT_THROW(weights.asked("layers.0.mixer.q.bais"), Error);
}

}  // namespace
}  // namespace tessera::model::overlay_test
