#include "tessera/train/loss.h"

#include <torch/csrc/autograd/custom_function.h>

#include "tessera/model/large_weights_testing.h"
#include "tessera/train/objective_testing.h"
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
                                          {.scale = 0.25, .z_loss = z_loss});
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
                                          {.scale = 1.0 / 6, .l2_wrap = 0.05});
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
  EXPECT_NEAR(loss_and_backward(model, hidden * 1, targets, {}), want.item<double>(),
              1e-5 * want.item<double>());
  EXPECT_LT((hidden.grad() - gradient).abs().max().item<double>(),
            1e-5 * gradient.abs().max().item<double>());
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
