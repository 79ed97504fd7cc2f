#include "tessera/train/objective/loss.h"

#include <torch/csrc/autograd/custom_function.h>

#include "tessera/infer/evaluation/score.h"
#include "tessera/model/large_weights_testing.h"
#include "tessera/ops/live_bytes_testing.h"
#include "tessera/train/objective/objective_testing.h"
#include "tessera/train/train_testing.h"

namespace tessera::train::loss_test {
namespace {

const spec::Json kSpec = json_of(R"({"tessera": 1, "arch": "decoder", "vocab": 11, "d_model": 8,
    "layers": [{"mixer": {"type": "attention", "n_heads": 2}}], "ffn": {"type": "mlp", "act": "gelu_tanh", "d_hidden": 12},
    "head": {"type": "tied", "softcap": 3}})");

struct Case {
  model::Model model;
  nn::Batch batch;
  Tensor targets;
};

Case make_case() {
  const auto spec = model::read_model_spec(kSpec);
  return {model::Model(spec, model::large_weights(spec, 3, 15, at::kDouble)),
          nn::Batch::of({{1, 5, 2, 7}, {10, 0, 3}}), at::tensor({5, 2, 7, -1, 0, 3, 9}, at::kLong)};
}

/// The definition, out of torch's own operations.
Tensor plain_loss(const Case& c, double z_loss) {
  const Tensor logits = c.model.logits(c.model.hidden(c.batch));
  const Tensor valid = c.targets >= 0;
  const Tensor lse = at::logsumexp(logits, -1);
  const Tensor nats = lse - logits.gather(-1, c.targets.clamp_min(0).unsqueeze(-1)).squeeze(-1) +
                      z_loss * lse.square();
  return at::where(valid, nats, 0.0).sum();
}

void clear_gradients(const Case& c) {
  for (const auto& [decl, weight] : c.model.weights().all())
    Tensor(weight->dense_tensor()).mutable_grad() = Tensor();
}

TEST(Loss, GradientsEqualTheDefinition) {
  const Case c = make_case();
  for (const double z_loss : {0.0, 0.01}) {
    (plain_loss(c, z_loss) * 0.25).backward();
    std::vector<Tensor> want;
    for (const auto& [decl, weight] : c.model.weights().all())
      want.push_back(weight->dense_tensor().grad());
    clear_gradients(c);
    const double nats = loss_and_backward(c.model, c.model.hidden(c.batch), c.targets,
                                          {.scale = 0.25, .z_loss = z_loss})
                            .nll;
    EXPECT_NEAR(nats, plain_loss(c, 0).item<double>(), 1e-11);
    for (size_t i = 0; i < want.size(); ++i) {
      const auto& [decl, weight] = c.model.weights().all()[i];
      const double scale = want[i].abs().max().item<double>();
      EXPECT_GT(scale, 1e-6) << decl.name;
      EXPECT_LT((weight->dense_tensor().grad() - want[i]).abs().max().item<double>(), 1e-10 * scale)
          << decl.name;
    }
    clear_gradients(c);
  }
}

/// The reference: the loss as it is, and 1e-4 / (B T) of the largest logit on its gradient,
/// whatever is asked of the loss.
struct L2Wrap : torch::autograd::Function<L2Wrap> {
  static Tensor forward(torch::autograd::AutogradContext* context,
                        const Tensor& loss,
                        const Tensor& logits,
                        const Tensor& factors_N1) {
    context->save_for_backward({logits, factors_N1});
    return loss.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto [largest, ids] = saved[0].max(-1, true);
    return {gradients[0], at::zeros_like(saved[0]).scatter_(-1, ids, largest * saved[1]), Tensor()};
  }
};

TEST(Loss, L2WrapEqualsTheDefinition) {
  const Case c = make_case();
  const Tensor valid = (c.targets >= 0).unsqueeze(-1).to(at::kDouble);
  const auto gradients = [&](const auto& backward) {
    backward();
    std::vector<Tensor> out;
    for (const auto& [decl, weight] : c.model.weights().all())
      out.push_back(weight->dense_tensor().grad());
    clear_gradients(c);
    return out;
  };
  const auto plain = gradients([&] { (plain_loss(c, 0) / 6).backward(); });
  const auto want = gradients([&] {
    const Tensor logits = c.model.logits(c.model.hidden(c.batch));
    const Tensor nats = at::cross_entropy_loss(logits, c.targets, {}, at::Reduction::Mean, -1);
    L2Wrap::apply(nats, logits, 0.05 / 6 * valid).backward();
  });
  const auto got = gradients([&] {
    const double nats = loss_and_backward(c.model, c.model.hidden(c.batch), c.targets,
                                          {.scale = 1.0 / 6, .l2_wrap = 0.05})
                            .nll;
    EXPECT_NEAR(nats, plain_loss(c, 0).item<double>(), 1e-11);
  });
  for (size_t i = 0; i < want.size(); ++i) {
    const double scale = want[i].abs().max().item<double>();
    EXPECT_GT((want[i] - plain[i]).abs().max().item<double>(), 1e-6 * scale);
    EXPECT_LT((got[i] - want[i]).abs().max().item<double>(), 1e-10 * scale);
  }
}

TEST(Loss, GradientsAreSlopes) {
  const Case c = make_case();
  loss_and_backward(c.model, c.model.hidden(c.batch), c.targets, {});
  const RandomKey key(1);
  for (const auto& [decl, weight] : c.model.weights().all()) {
    Tensor flat = weight->dense_tensor().detach().reshape({-1});  // the same memory
    const Tensor gradient = weight->dense_tensor().grad().reshape({-1});
    for (uint64_t probe = 0; probe < 3; ++probe) {
      const auto i = static_cast<int64_t>(key.fold(decl.name).bits(probe)) % flat.numel();
      const double h = 1e-5, before = flat[i].item<double>();
      const auto at_offset = [&](double offset) {
        flat[i].fill_(before + offset);
        const double value = infer::score(c.model, c.model.hidden(c.batch), c.targets).nats;
        flat[i].fill_(before);
        return value;
      };
      const double slope = (at_offset(h) - at_offset(-h)) / (2 * h);
      EXPECT_NEAR(gradient[i].item<double>(), slope, 1e-7 * std::max(1.0, std::abs(slope)))
          << decl.name << " " << i;
    }
  }
}

TEST(Loss, ChunksDoNotShow) {
  // several chunks at this vocabulary
  const int64_t n = 3 * loss_chunk(1 << 18) + 5;
  const auto spec = model::read_model_spec(
      json_of(R"({"tessera": 1, "arch": "decoder", "vocab": 262144, "d_model": 4,
      "layers": [{"mixer": {"type": "attention", "n_heads": 1}}], "ffn": {"type": "mlp", "d_hidden": 4}, "head": {"type": "linear"}})"));
  const model::Model model(spec, model::Weights::initial(spec, 3));
  const Tensor hidden = at::randn({n, 4}).requires_grad_(true);
  const Tensor targets = at::arange(n, at::kLong) * 7;
  const Tensor want = at::cross_entropy_loss(model.logits(hidden), targets, {}, at::Reduction::Sum);
  want.backward();
  const Tensor gradient = hidden.grad().clone();
  hidden.mutable_grad() = Tensor();
  EXPECT_NEAR(loss_and_backward(model, hidden * 1, targets, {}).nll, want.item<double>(),
              1e-5 * want.item<double>());
  EXPECT_LT((hidden.grad() - gradient).abs().max().item<double>(),
            1e-5 * gradient.abs().max().item<double>());
}

struct Golden {
  Tensor logits = at::tensor({2., 1., 0., 0., 0., 3., 1., -1., .5}, at::kDouble).view({3, 3});
  Tensor targets = at::tensor({0, 1, 2}, at::kLong);
  TokenLosses losses(const LossOptions& options, Tensor* gradient = nullptr) const {
    Tensor z = logits.clone();
    const TokenLosses out = cross_entropy_(z, targets, options);
    if (gradient != nullptr) *gradient = z;
    return out;
  }
};

// specification, feed-forward layers, 12.1, 12.2
TEST(Loss, GoldensOfTheSpecification) {
  const Golden g;
  EXPECT_NEAR(g.losses({}).nll / 3, 1.51916195, 1e-8);
  const LossOptions all{.smoothing = {0.1, SmoothedOver::all}},
      others{.smoothing = {0.1, SmoothedOver::others}};
  EXPECT_NEAR(g.losses(all).nll / 3, 1.51916195, 1e-8);
  EXPECT_NEAR(g.losses(all).smoothed / 3, 1.53027306, 1e-8);
  EXPECT_NEAR(g.losses(others).smoothed / 3, 1.53582861, 1e-8);
  Tensor z = at::tensor({2., 1., 0., -1.}, at::kDouble).view({1, 4});
  const Tensor before = z.clone();
  const TokenLosses with_z = cross_entropy_(z, at::tensor({0}, at::kLong), {.z_loss = 1e-4});
  EXPECT_NEAR(with_z.z, 5.95452577e-4, 1e-12);  // 1e-4 * 2.44018970^2
  const Tensor of_z = z - (at::softmax(before, -1) - at::tensor({1., 0., 0., 0.}, at::kDouble));
  EXPECT_TRUE(at::allclose(
      of_z, at::tensor({3.1425e-4, 1.1561e-4, 4.253e-5, 1.565e-5}, at::kDouble).view({1, 4}), 0,
      5e-9));
}

TEST(Loss, SmoothedGradientsEqualTorchs) {
  const Golden g;
  for (const auto over : {SmoothedOver::all, SmoothedOver::others}) {
    Tensor gradient;
    const LossOptions options{.scale = 0.5, .smoothing = {0.1, over}};
    const double smoothed = g.losses(options, &gradient).smoothed;
    const Tensor logits = g.logits.clone().requires_grad_(true);
    const double e = over == SmoothedOver::all ? 0.1 : 0.1 * 3 / 2;
    const Tensor want = at::cross_entropy_loss(logits, g.targets, {}, at::Reduction::Sum, -100, e);
    EXPECT_NEAR(smoothed, want.item<double>(), 1e-12);
    (want * 0.5).backward();
    EXPECT_TRUE(at::allclose(gradient, logits.grad(), 0, 1e-14));
  }
}

// parameters and their gradients apart
TEST(Loss, HoldsATenthOfTheLogits) {
  constexpr int64_t kVocab = 1 << 17, kTokens = 1 << 12, kWidth = 16;
  const auto spec = model::read_model_spec(
      json_of(R"({"tessera": 1, "arch": "decoder", "vocab": 131072, "d_model": 16,
      "layers": [{"mixer": {"type": "attention", "n_heads": 1}}], "ffn": {"type": "mlp", "d_hidden": 4}, "head": {"type": "linear"}})"));
  const model::Model model(spec, model::Weights::initial(spec, 3));
  const Tensor hidden = at::randn({kTokens, kWidth}).requires_grad_(true);
  const Tensor targets = at::arange(kTokens, at::kLong) * 7;
  ops::LiveBytes live;
  loss_and_backward(model, hidden, targets, {.z_loss = 1e-4, .smoothing = {0.1}});
  const int64_t gradients = (kVocab + kTokens) * kWidth * 4, logits = kTokens * kVocab * 4;
  EXPECT_LT(live.most() - gradients, logits / 10)
      << live.most() << " bytes, " << gradients << " of them gradients; logits " << logits;
}

TEST(Evaluate, CountsEveryTokenOnce) {
  const TemporaryFolder folder;
  TokenWriter writer(folder / "t.tokens", 11);
  for (const auto& document :
       std::vector<std::vector<int32_t>>{{1, 5, 2, 7, 3}, {10, 0}, {3, 4, 9, 1}}) {
    writer.append(document);
    writer.end_document(20);
  }
  writer.finish();
  const auto split = TokenSplit::open(folder / "t.tokens");
  const Case c = make_case();
  const Evaluation all = evaluate_split(c.model, split, 100, {.batch = 3});
  EXPECT_EQ(all.tokens, 8);
  const double want =
      (infer::score(c.model, c.model.hidden(nn::Batch::of({{1, 5, 2, 7}, {10}, {3, 4, 9}})),
                    at::tensor({5, 2, 7, 3, 0, 4, 9, 1}, at::kLong))
           .nats) /
      8;
  EXPECT_NEAR(all.loss, want, 1e-12);
  EXPECT_NEAR(all.bits_per_byte, want / std::log(2.0) * 11 / 60, 1e-12);
  EXPECT_EQ(evaluate_split(c.model, split, 3, {.batch = 2}).tokens, 8);
  EXPECT_LT(evaluate_split(c.model, split, 3, {.batch = 2, .batches = 1}).tokens, 8);
}

}  // namespace
}  // namespace tessera::train::loss_test
