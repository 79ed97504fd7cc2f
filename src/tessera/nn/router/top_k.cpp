#include "tessera/nn/router/top_k.h"

#include <limits>

#include "tessera/nn/checkpointing.h"
#include "tessera/nn/router/routing.h"
#include "tessera/ops/basic/pointwise.h"
#include "tessera/ops/basic/softmax.h"

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
    Tensor z_NE = logits(x_ND, context);
    if (config_.logit_scale != 1) z_NE = z_NE * config_.logit_scale;
    z_NE = ops::softcap(z_NE, config_.softcap);
    const Tensor s_NE = config_.score == RouterScore::sigmoid
                            ? ops::activate(z_NE, ops::Activation::sigmoid)
                            : ops::softmax(z_NE);
    const Tensor expert_NK = chosen(context, [&] {
      const at::NoGradGuard no_gradients;
      return largest(candidates(config_.score == RouterScore::softmax_of_chosen ? z_NE : s_NE),
                     config_.k);
    });
    const Tensor at_NK = expert_NK.to(x_ND.device());
    Tensor w_NK;
    if (config_.score == RouterScore::softmax_of_chosen) {
      w_NK = ops::softmax(z_NE.gather(1, at_NK));
    } else {
      w_NK = s_NE.gather(1, at_NK);
      if (config_.norm > 0) w_NK = w_NK / (size_of(w_NK) + 1e-20);
    }
    report(z_NE,
           config_.score == RouterScore::sigmoid ? s_NE / s_NE.sum(-1, /*keepdim=*/true) : s_NE,
           expert_NK, context);
    if (expert_scale_) w_NK = w_NK * scales(expert_NK).to(w_NK.options());
    return {expert_NK, w_NK};
  }

 private:
  /// The learned factors of choices [N, K].
  Tensor scales(const Tensor& expert_NK) const {
    const Tensor& g_E = expert_scale_->tensor();
    return at::embedding(g_E.unsqueeze(1), expert_NK.to(g_E.device())).squeeze(-1);
  }

  Tensor size_of(const Tensor& w_NK) const {
    return config_.norm == 1 ? w_NK.sum(-1, /*keepdim=*/true)
                             : w_NK.norm(at::Scalar(config_.norm), {-1}, /*keepdim=*/true);
  }

  /// What is chosen by: scores with the balancing bias, -inf outside the groups that are kept.
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
    return c_NGE.masked_fill(outside.unsqueeze(-1), kNone).reshape({n, -1});
  }

  TopKConfig config_;
  WeightPtr balance_, expert_scale_;
};

}  // namespace

std::unique_ptr<Router> build(const TopKConfig& config, const Builder& builder) {
  return std::make_unique<TopKRouter>(config, builder);
}

}  // namespace tessera::nn
