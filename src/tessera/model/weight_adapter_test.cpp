#include "tessera/model/weight_adapter.h"

#include <thread>

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "tessera/base/testing.h"
#include "tessera/nn/dropout.h"
#include "tessera/nn/checkpointing.h"
#include "tessera/ops/ops_testing.h"

namespace tessera::model::weight_adapter_test {
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
void draw(const std::vector<WeightAdapter>& overlays) {
  const at::NoGradGuard guard;
  for (const WeightAdapter& overlay : overlays) Tensor(overlay.b->dense_tensor()).fill_(0.125);
}

TEST(WeightAdapter, FreshOnesLeaveTheModelAsItIs) {
  const Model model(tiny(), Weights::initial(tiny(), 1));
  const auto overlays = fresh_overlays(model.spec(), {{"", 4, 8}}, 7);
  EXPECT_EQ(overlays.size(), 2u * (4 + 3));  // q, k, v, o and gate, up, down
  const at::NoGradGuard guard;
  EXPECT_TRUE(at::allclose(logits(with_adapters(model, overlays)), logits(model), 1e-6, 1e-6));
}

TEST(WeightAdapter, EqualsTheModelOfTheMergedWeights) {
  const Model model(tiny(), Weights::initial(tiny(), 1));
  const auto overlays = fresh_overlays(model.spec(), {{"mixer.q", 4, 8}, {"up", 2, 2}}, 7);
  EXPECT_EQ(overlays.size(), 4u);
  EXPECT_DOUBLE_EQ(overlays[0].scale, 2);
  draw(overlays);
  std::map<std::string, WeightPtr> weights;
  for (const auto& [decl, weight] : model.weights().all()) weights[decl.name] = weight;
  for (const auto& [name, numbers] : merged(model.weights(), overlays))
    weights[name] = std::make_shared<const ops::Weight>(ops::Weight::dense(name, numbers));
  const Model by_hand(tiny(), Weights::check(tiny(), weights));
  const at::NoGradGuard guard;
  const Tensor got = logits(with_adapters(model, overlays));
  EXPECT_TRUE(at::allclose(got, logits(by_hand), 1e-5, 1e-5));
  EXPECT_GT((got - logits(model)).abs().max().item<double>(), 1e-3);
}

TEST(WeightAdapter, GradientsReachItAndNotTheFrozenModel) {
  std::map<std::string, WeightPtr> frozen;
  const Weights fresh = Weights::initial(tiny(), 1);
  for (const auto& [decl, weight] : fresh.all())
    frozen[decl.name] = std::make_shared<const ops::Weight>(weight->converted(DType::bf16));
  const Model model(tiny(), Weights::check(tiny(), frozen));
  const auto overlays = fresh_overlays(model.spec(), {{"q", 4, 8}}, 7);
  draw(overlays);
  logits(with_adapters(model, overlays)).square().sum().backward();
  for (const WeightAdapter& overlay : overlays) {
    EXPECT_GT(overlay.a->dense_tensor().grad().abs().max().item<double>(), 0) << overlay.weight;
    EXPECT_GT(overlay.b->dense_tensor().grad().abs().max().item<double>(), 0) << overlay.weight;
  }
}

TEST(WeightAdapter, RefusesWhatItCannotAdapt) {
  const Model model(tiny(), Weights::initial(tiny(), 1));
  EXPECT_THROW(fresh_overlays(model.spec(), {{"nothing", 4, 8}}, 7), Error);
  EXPECT_THROW(fresh_overlays(model.spec(), {{"q", 17, 8}}, 7), Error);
  EXPECT_THROW(fresh_overlays(model.spec(), {{"q", 0, 8}}, 7), Error);
  auto overlays = fresh_overlays(model.spec(), {{"layers.0.mixer.q", 4, 8}}, 7);
  ASSERT_EQ(overlays.size(), 1u);
  overlays[0].weight = "layers.9.mixer.q.weight";
  EXPECT_THROW(with_adapters(model, overlays), Error);
  overlays[0].weight = "layers.0.mixer.k.weight";
  EXPECT_THROW(with_adapters(model, overlays), Error);
}

// --- experts -------------------------------------------------------------------------------------

constexpr const char* kMoe = R"({"type": "moe", "n_experts": 3, "router": {"type": "top_k", "k": 2},
    "expert": {"type": "glu", "d_hidden": 24}})";

/// B and A of numbers that differ from expert to expert.
void draw_all(const std::vector<WeightAdapter>& overlays) {
  const at::NoGradGuard guard;
  for (const WeightAdapter& overlay : overlays)
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
    EXPECT_TRUE(at::allclose(logits(with_adapters(model, overlays)), logits(model), 1e-6, 1e-6));
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
    for (const WeightAdapter& overlay : overlays) {
      const Tensor w = model.weights().find(overlay.weight)->tensor();
      std::vector<Tensor> experts;
      for (int64_t e = 0; e < 3; ++e)
        experts.push_back(w[e] + overlay.scale * at::matmul(overlay.b->tensor().detach()[e],
                                                            overlay.a->tensor().detach()[e]));
      by_hand[overlay.weight] = at::stack(experts).requires_grad_(true);
      EXPECT_TRUE(at::allclose(merged(model.weights(), {overlay}).at(overlay.weight),
                               by_hand[overlay.weight], 1e-5, 1e-6));
      weights[overlay.weight] = std::make_shared<const ops::Weight>(
          ops::Weight::dense(overlay.weight, by_hand[overlay.weight]));
    }
    const Model plain(spec, Weights::check(spec, weights)),
        adapted = with_adapters(model, overlays);
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
    for (const WeightAdapter& overlay : overlays) {
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

// --- other kinds ---------------------------------------------------------------------------------

Model with(const Model& model, const std::map<std::string, Tensor>& numbers) {
  std::map<std::string, WeightPtr> weights;
  for (const auto& [decl, weight] : model.weights().all()) weights[decl.name] = weight;
  for (const auto& [name, tensor] : numbers)
    weights[name] = std::make_shared<const ops::Weight>(ops::Weight::dense(name, tensor));
  return Model(model.spec(), Weights::check(model.spec(), weights));
}

double apart(const Tensor& a, const Tensor& b) {
  return (a - b).abs().max().item<double>();
}

/// Every number moved by a sine.
void stir(const std::vector<WeightAdapter>& overlays, double size = 0.2) {
  const at::NoGradGuard guard;
  double phase = 0.3;
  for (const WeightAdapter& overlay : overlays)
    for (const OverlayPart& part : kOverlayParts)
      if (const WeightPtr& weight = overlay.*part.part) {
        const Tensor t = weight->dense_tensor();
        Tensor(t).add_(
            (at::arange(t.numel(), at::kFloat) * 1.7 + phase++).sin().reshape(t.sizes()) * size);
      }
}

const char* kBiased =
    R"({"tessera": 1, "arch": "decoder", "vocab": 50, "d_model": 16, "context": 40,
    "layers": [{"repeat": 2, "mixer": {"type": "attention", "n_heads": 2,
                                       "bias": {"q": true, "k": true, "v": true, "o": true},
                                       "position": {"type": "rope"}}}],
    "ffn": {"type": "mlp", "d_hidden": 24, "bias": true}})";

Model biased() {
  const ModelSpec spec = read_model_spec(spec::parse_json(kBiased, "biased"));
  Model model(spec, Weights::initial(spec, 1));
  const at::NoGradGuard guard;
  for (const auto& [decl, weight] : model.weights().all())
    if (decl.name.ends_with(".bias"))
      Tensor(weight->dense_tensor()).fill_(0.3);
    else if (decl.shape.size() == 2)
      Tensor(weight->dense_tensor()).mul_(8);  // what layers do is to be seen in the logits
  return model;
}

TEST(OverlayKinds, BeginAsTheModelIsMergeIntoItAndLeaveItAgain) {
  const Model model = biased();
  auto dora = fresh_overlays(model.spec(), {{"", 3, 6}}, 7);
  add_magnitudes(dora, model.weights());
  const auto factors = fresh_factors(model.spec(), {{"mixer.k"}, {"mixer.v"}, {"down"}}, {"down"});
  ASSERT_EQ(factors.size(), 6u);
  EXPECT_TRUE(factors[0].out != nullptr && factors[2].in != nullptr);
  const at::NoGradGuard guard;
  const Tensor before = logits(model);
  for (const auto& overlays : {fresh_overlays(model.spec(), {{"", 3, 6}}, 7), dora, factors}) {
    EXPECT_LT(apart(logits(with_adapters(model, overlays)), before), 1e-4);
    stir(overlays);
    const Tensor after = logits(with_adapters(model, overlays));
    EXPECT_GT(apart(after, before), 0.02);
    const Model whole = with(model, merged(model.weights(), overlays));
    EXPECT_LT(apart(logits(whole), after), 1e-4);
    if (overlays.front().magnitude != nullptr) {
      test::expect_error(ErrorKind::usage, "the original weight is lost",
                         [&] { unmerged(whole.weights(), overlays); });
      continue;
    }
    const Model back = with(whole, unmerged(whole.weights(), overlays));
    for (const auto& [decl, weight] : model.weights().all())
      EXPECT_LT(apart(back.weights().find(decl.name)->tensor(), weight->tensor()), 1e-6)
          << decl.name;
  }
}

TEST(OverlayKinds, ProductsAddUpAndOthersDoNot) {
  const Model model = biased();
  const auto one = fresh_overlays(model.spec(), {{"mixer.q", 3, 6}}, 7),
             two = fresh_overlays(model.spec(), {{"mixer.q", 2, 5}, {"up", 2, 2}}, 8);
  stir(one), stir(two);
  std::vector<WeightAdapter> both = one;
  both.insert(both.end(), two.begin(), two.end());
  const at::NoGradGuard guard;
  const Tensor got = logits(with_adapters(model, both));
  EXPECT_TRUE(at::equal(logits(with_adapters(with_adapters(model, one), two)), got));
  EXPECT_LT(apart(logits(with(model, merged(model.weights(), both))), got), 1e-4);
  // the sum of what each adds
  const std::string q = "layers.0.mixer.q.weight";
  const auto added = [&](const std::vector<WeightAdapter>& x) {
    return merged(model.weights(), x).at(q) - model.weights().find(q)->tensor();
  };
  EXPECT_LT(apart(added(both), added(one) + added(two)), 1e-6);
  auto lengths = two;
  add_magnitudes(lengths, model.weights());
  for (const auto& other : {lengths, fresh_factors(model.spec(), {{"mixer.q"}}, {})})
    test::expect_error(ErrorKind::usage, "has an adapter already, and the two do not add up",
                       [&] { with_adapters(with_adapters(model, one), other); });
}

TEST(OverlayKinds, SizesLayersAndWhatIsLeftOut) {
  const ModelSpec spec = tiny();
  OverlayTarget target{.name = "", .rank = 4, .alpha = 8};
  target.exclude = {"mixer.o", "gate"};
  target.layers = {1};
  target.sizes = {{"layers.1.mixer.v", 1, 3}, {"v", 2, 2}};
  const auto overlays = fresh_overlays(spec, {target}, 7);
  std::vector<std::string> got;
  for (const WeightAdapter& o : overlays)
    got.push_back(fmt::format("{} {} {}", o.weight, o.a->size(0), o.scale));
  EXPECT_EQ(got,
            (std::vector<std::string>{"layers.1.mixer.q.weight 4 2", "layers.1.mixer.k.weight 4 2",
                                      "layers.1.mixer.v.weight 1 3", "layers.1.ffn.up.weight 4 2",
                                      "layers.1.ffn.down.weight 4 2"}));
  target.sizes = {{"nobody", 1, 3}};
  test::expect_error(ErrorKind::usage, "size \"nobody\" names no matrix",
                     [&] { fresh_overlays(spec, {target}, 7); });
}

TEST(OverlayKinds, WholeWeightsStandInPlace) {
  const Model model = biased();
  const auto whole = whole_weights(model, {"final_norm.weight"});
  {
    const at::NoGradGuard guard;
    Tensor(whole[0].whole->dense_tensor()).mul_(2);
  }
  const at::NoGradGuard guard;
  EXPECT_LT(apart(logits(with_adapters(model, whole)), 2 * logits(model)), 1e-4);
}

/// Keys and values, or vectors, of three virtual tokens.
std::vector<WeightAdapter> virtual_ones(const Model& model, bool prefix) {
  const auto overlays = prefix ? fresh_prefix(model.spec(), 3, 7)
                               : std::vector<WeightAdapter>{prompt_of(model, {4, 9, 4})};
  stir(overlays, 0.7);
  return overlays;
}

TEST(VirtualTokens, OfAPromptAreTokensInFront) {
  const Model model = biased();
  const std::vector<WeightAdapter> prompt = {prompt_of(model, {4, 9, 4})};
  const Model with_prompt = with_adapters(model, prompt);
  EXPECT_EQ(with_prompt.virtual_tokens(), 3);
  const at::NoGradGuard guard;
  const Tensor got = with_prompt.hidden(nn::Batch::of({{1, 2, 3}, {7}})),
               want = model.hidden(nn::Batch::of({{4, 9, 4, 1, 2, 3}, {4, 9, 4, 7}}));
  EXPECT_TRUE(at::equal(got, at::cat({want.narrow(0, 3, 3), want.narrow(0, 9, 1)})));
}

TEST(VirtualTokens, OfAPrefixWeighAsTheirShareOfTheSoftmaxSays) {
  // golden of peft's arithmetic: two keys and values before two tokens, no angles
  const ModelSpec spec = read_model_spec(spec::parse_json(
      R"({"tessera": 1, "arch": "decoder", "vocab": 4, "d_model": 2, "norm": null,
          "layers": [{"mixer": {"type": "attention", "n_heads": 1}}], "ffn": null})",
      "one"));
  std::map<std::string, WeightPtr> weights;
  const auto dense = [](const std::string& name, const Tensor& t) {
    return std::make_shared<const ops::Weight>(ops::Weight::dense(name, t));
  };
  for (const spec::ParamDecl& decl : parameters(spec))
    weights[decl.name] = dense(decl.name, at::zeros(decl.shape, at::kDouble));
  // the mixer reads rows of the identity: its projections are the queries, keys and values
  weights["embed.token.weight"] = dense("e", at::eye(4, 2, at::kDouble));
  weights["layers.0.mixer.q.weight"] = dense("q", ops::gen({2, 2}, .7, .1).t().contiguous());
  weights["layers.0.mixer.k.weight"] = dense("k", ops::gen({2, 2}, .5, .4).t().contiguous());
  weights["layers.0.mixer.v.weight"] = dense("v", ops::gen({2, 2}, .9, -.2).t().contiguous());
  weights["layers.0.mixer.o.weight"] = dense("o", at::eye(2, at::kDouble));
  const Model model(spec, Weights::check(spec, weights));
  WeightAdapter k{.weight = "layers.0.mixer.k.weight"}, v{.weight = "layers.0.mixer.v.weight"};
  k.prefix = dense("k", ops::gen({2, 2}, .6, .3));
  v.prefix = dense("v", ops::gen({2, 2}, .8, .2));
  Tensor o;
  ForwardOptions options;
  options.probe = [&](const std::string& name, const Tensor& value) {
    if (name == "layers.0.mixer.out") o = value;
  };
  with_adapters(model, {k, v}).hidden(nn::Batch::of({{0, 1}}), options);
  ops::expect_near(o.narrow(0, 2, 2),
                   ops::tensor({0.34322779, 0.66240744, 0.61810314, 0.62528432}, {2, 2}), 1e-7);
}

TEST(VirtualTokens, AStateBeginsWithThem) {
  const Model model = biased();
  for (const bool prefix : {true, false}) {
    const Model adapted = with_adapters(model, virtual_ones(model, prefix));
    const at::NoGradGuard guard;
    const Tensor whole = adapted.hidden(nn::Batch::of({{1, 2, 3, 4}}));
    EXPECT_GT(apart(whole, model.hidden(nn::Batch::of({{1, 2, 3, 4}}))), 0.01);
    State state(adapted.spec(), 1);
    ForwardOptions options;
    options.state = &state;
    const Tensor first = adapted.hidden(nn::Batch::of({{0, 0, 0, 1, 2}}), options),
                 rest = adapted.hidden(nn::Batch::of({{3, 4}}, {5}), options);
    EXPECT_TRUE(at::equal(at::cat({first.narrow(0, 3, 2), rest}), whole));
  }
}

TEST(VirtualTokens, AreRefusedWhereTheyHaveNoPlace) {
  const Model model = biased();
  test::expect_error(ErrorKind::usage, "cannot be merged into weights",
                     [&] { merged(model.weights(), virtual_ones(model, true)); });
  auto half = virtual_ones(model, true);
  half.pop_back();
  test::expect_error(ErrorKind::usage, "but not at \"layers.1.mixer.v.weight\"",
                     [&] { with_adapters(model, half); });
  const ModelSpec mamba = read_model_spec(spec::parse_json(
      R"({"tessera": 1, "arch": "decoder", "vocab": 50, "d_model": 16,
          "layers": [{"mixer": {"type": "mamba2", "n_heads": 4, "d_state": 8}}], "ffn": null})",
      "mamba"));
  test::expect_error(ErrorKind::usage, "mixer \"mamba2\" of layers.0.mixer has no keys",
                     [&] { fresh_prefix(mamba, 3, 1); });
  // they take places of a table of positions
  spec::Json table = spec::parse_json(kBiased, "table");
  table["embed"] = {{"type", "token"}, {"position", {{"type", "learned"}, {"n_positions", 40}}}};
  table["layers"][0]["mixer"].erase("position");
  const ModelSpec spec = read_model_spec(table);
  const Model placed(spec, Weights::initial(spec, 1));
  const Model adapted = with_adapters(placed, virtual_ones(placed, false));
  adapted.hidden(nn::Batch::of({std::vector<int64_t>(37, 1)}));
  test::expect_error(ErrorKind::input, "40",
                     [&] { adapted.hidden(nn::Batch::of({std::vector<int64_t>(38, 1)})); });
}

// --- dropout -------------------------------------------------------------------------------------

const std::vector<std::vector<int64_t>> kDocuments = {{3, 1, 4, 1}, {5, 9, 2, 6, 5, 3, 5}};

/// The tiny model with drawn overlays everywhere.
Model with_dropout(double p) {
  const Model model(tiny(), Weights::initial(tiny(), 1));
  const auto overlays = fresh_overlays(model.spec(), {{"", 4, 8, p}}, 7);
  draw(overlays);
  return with_adapters(model, overlays);
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
  context.products.drop = nn::input_drop(context, batch);
  return context;
}

TEST(OverlayDropout, LeavesTheExpectationAsItIs) {
  constexpr int64_t kTokens = 500, kWidth = 16;
  constexpr double kP = 0.25;
  const nn::Batch batch = nn::Batch::of(at::zeros({1, kTokens}, at::kLong));
  const Tensor x = at::sin(at::arange(kTokens * kWidth, at::kFloat)).reshape({kTokens, kWidth}) + 2;
  const auto read = [&](const std::string& name) {
    return ops::linear(x, *reader(name, kWidth, kP), nullptr, training(batch).products).detach();
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
  const auto gradient = [&](bool again, bool elsewhere = false) {
    const std::vector<WeightPtr> weights{reader("w", 16, 0.5)};
    const auto body = [&](const Tensor& in, nn::Context& here) {
      return ops::linear(in, *weights[0], nullptr, here.products).square();
    };
    nn::Context context = training(batch);
    const Tensor in = x.clone().requires_grad_(true);
    const Tensor y = again ? nn::recomputed(body, weights, in, context) : body(in, context);
    if (elsewhere)
      std::thread([&] { y.sum().backward(); }).join();
    else
      y.sum().backward();
    return weights[0]->parts()->a->dense_tensor().grad();
  };
  ASSERT_TRUE(gradient(true).defined());
  EXPECT_TRUE(at::equal(gradient(true), gradient(false)));
  EXPECT_TRUE(at::equal(gradient(true, /*elsewhere=*/true), gradient(false)));
}

TEST(OverlayDropout, OfExpertsIsByTokenAndExpert) {
  const ModelSpec spec = tiny(kMoe);
  const Model model(spec, Weights::initial(spec, 1));
  const auto drop = [&](double p) {
    const auto overlays = fresh_overlays(spec, {{"experts.up", 4, 8, p}}, 7);
    draw_all(overlays);
    return with_adapters(model, overlays);
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
    hidden(with_adapters(model, overlays), nn::Batch::of(kDocuments), true);
  });
  for (const double bad : {-0.1, 1.0, std::nan("")})
    test::expect_error(ErrorKind::usage, "expected 0 to below 1", [&] {
      fresh_overlays(model.spec(), {{"up", 4, 8, bad}}, 7);
    });
}

TEST(WeightAdapter, GradientsReachItThroughWhatIsComputedAgain) {
  const auto gradients = [&](const std::string& ffn) {
    const ModelSpec spec = tiny(ffn);
    std::map<std::string, WeightPtr> weights;
    const Weights fresh = Weights::initial(spec, 1);
    for (const auto& [decl, weight] : fresh.all())
      weights[decl.name] = std::make_shared<const ops::Weight>(ops::Weight::dense(
          decl.name, at::sin(at::arange(decl.elements(), at::kFloat) * 0.7).reshape(decl.shape)));
    const Model model(spec, Weights::check(spec, weights));
    auto overlays = fresh_overlays(model.spec(), {{"up", 4, 8}}, 7);
    for (const WeightAdapter& overlay : overlays) {
      const at::NoGradGuard guard;
      Tensor(overlay.a->dense_tensor()).fill_(0.25);
    }
    draw(overlays);
    logits(with_adapters(model, overlays)).square().sum().backward();
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
}  // namespace tessera::model::weight_adapter_test
