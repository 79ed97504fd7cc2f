#include "tessera/nn/router/top_k.h"

#include <algorithm>
#include <limits>

#include "tessera/nn/checkpointing.h"
#include "tessera/nn/decode_step.h"
#include "tessera/nn/router/routing.h"
#include "tessera/nn/step_products.h"
#include "tessera/ops/basic/pointwise.h"
#include "tessera/ops/basic/softmax.h"
#include "tessera/ops/light_tensor.h"

namespace tessera::nn {
namespace {

constexpr double kNone = -std::numeric_limits<double>::infinity();

class TopKRouter final : public LearnedRouter {
 public:
  TopKRouter(const TopKConfig& config, const Builder& builder)
      : LearnedRouter(config, builder),
        config_(config),
        balance_(builder.optional("balance")),
        expert_scale_(builder.optional("expert_scale")) {}

  Routing route(const Tensor& x_ND, Context& context) const override {
    const Scores s = scores(logits(x_ND, context));
    const Tensor expert_NK = chosen(context, [&] { return experts(s); }),
                 w_NK = weights(s, expert_NK);
    report(s.z_NE, of_softmax() ? s.s_NE : s.s_NE / s.s_NE.sum(-1, /*keepdim=*/true), expert_NK,
           context);
    return {expert_NK, w_NK};
  }

  std::shared_ptr<const RouterStep> step(const ops::ProductSettings& products) const override;

 private:
  class Step;

  bool of_softmax() const {
    return config_.score == RouterScore::softmax || config_.score == RouterScore::softmax_of_chosen;
  }
  /// Whether experts are chosen by their logits, and scores are of the chosen alone.
  bool by_logits() const {
    return config_.score == RouterScore::softmax_of_chosen ||
           config_.score == RouterScore::sigmoid_of_chosen;
  }

  /// The logits, scaled and capped, and their scores.
  struct Scores {
    Tensor z_NE, s_NE;
  };
  Scores scores(Tensor z_NE) const {
    if (config_.logit_scale != 1) z_NE = z_NE * config_.logit_scale;
    z_NE = ops::softcap(z_NE, config_.softcap);
    return {z_NE, router_scores(z_NE, config_.score)};
  }
  Tensor experts(const Scores& of) const {
    const at::NoGradGuard no_gradients;
    return largest(candidates(by_logits() ? of.z_NE : of.s_NE), config_.k);
  }
  Tensor weights(const Scores& of, const Tensor& expert_NK) const {
    const Tensor at_NK = expert_NK.to(of.z_NE.device());
    Tensor w_NK;
    if (config_.score == RouterScore::softmax_of_chosen) {
      w_NK = ops::softmax(of.z_NE.gather(1, at_NK));
    } else {
      w_NK = of.s_NE.gather(1, at_NK);
      w_NK = normed_weights(w_NK, config_.norm);
    }
    return expert_scale_ ? w_NK * scales(expert_NK).to(w_NK.options()) : w_NK;
  }

  /// The learned factors of choices [N, K].
  Tensor scales(const Tensor& expert_NK) const {
    const Tensor& g_E = expert_scale_->tensor();
    return at::embedding(g_E.unsqueeze(1), expert_NK.to(g_E.device())).squeeze(-1);
  }

  /// What is chosen by: scores with the balancing bias, -inf or 0 outside the groups that are kept.
  Tensor candidates(const Tensor& scores_NE) const {
    Tensor c = scores_NE;
    if (balance_) c = c + balance_->tensor().to(c.options());
    if (config_.keep_groups == config_.n_groups) return c;
    const int64_t n = c.size(0), each = c.size(1) / config_.n_groups;
    const Tensor c_NGE = c.reshape({n, config_.n_groups, each});
    const Tensor of_groups = config_.group_score == GroupScore::max
                                 ? c_NGE.amax(-1)
                                 : std::get<0>(c_NGE.topk(2, -1)).sum(-1);
    const Tensor kept = largest(of_groups, config_.keep_groups).to(c.device());
    const Tensor outside =
        at::ones(of_groups.sizes(), c.options().dtype(at::kBool)).scatter(1, kept, false);
    const double fill = config_.outside_groups == OutsideGroups::zero ? 0 : kNone;
    return c_NGE.masked_fill(outside.unsqueeze(-1), fill).reshape({n, -1});
  }

  TopKConfig config_;
  WeightPtr balance_, expert_scale_;
};

/// The logits by the team; what is made of a few rows of them is a few small tensors.
class TopKRouter::Step final : public RouterStep {
 public:
  Step(const TopKRouter& router, StepWeights& weights)
      : router_(router), gate_(weights.product(router.gate())) {}

  int64_t choices() const override { return router_.config_.k; }
  int64_t floats(int64_t n) const override { return places(n).floats(); }
  void run(Team& team,
           int64_t n,
           const float* x_ND,
           int64_t* expert_NK,
           float* weight_NK,
           float* memory) const override {
    StepMemory pieces;
    const int64_t width = gate_.width(), experts = gate_.rows(), k = choices();
    float* input = memory + pieces.take(StepInput::floats(n, width));
    float* z_NE = memory + pieces.take(n * experts);
    StepInput in(x_ND, n, width, input);
    in.prepare(team, {&gate_});
    team.wait();
    multiply(team, in, {{&gate_, z_NE}});
    team.wait();
    const Team::Share mine = team.share(n);
    const int64_t own = mine.end - mine.begin, first = mine.begin * k;
    if (own == 0) return;
    const Scores scores =
        router_.scores(ops::tensor_over(z_NE + mine.begin * experts, {own, experts}, at::kFloat));
    const Tensor expert = router_.experts(scores),
                 weight = router_.weights(scores, expert).contiguous();
    std::copy_n(expert.const_data_ptr<int64_t>(), own * k, expert_NK + first);
    std::copy_n(weight.const_data_ptr<float>(), own * k, weight_NK + first);
  }

 private:
  StepMemory places(int64_t n) const {
    StepMemory memory;
    memory.take(StepInput::floats(n, gate_.width()));
    memory.take(n * gate_.rows());
    return memory;
  }

  const TopKRouter& router_;
  StepProduct gate_;
};

std::shared_ptr<const RouterStep> TopKRouter::step(const ops::ProductSettings& products) const {
  StepWeights weights(products);
  auto step = std::make_shared<Step>(*this, weights);
  return weights.serve() ? step : nullptr;
}

}  // namespace

std::unique_ptr<Router> build(const TopKConfig& config, const Builder& builder) {
  return std::make_unique<TopKRouter>(config, builder);
}

}  // namespace tessera::nn
