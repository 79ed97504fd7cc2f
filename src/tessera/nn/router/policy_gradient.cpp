#include "tessera/nn/router/policy_gradient.h"

#include "tessera/nn/checkpointing.h"
#include "tessera/nn/router/routing.h"
#include "tessera/ops/basic/softmax.h"

namespace tessera::nn {
namespace {

class PolicyGradientRouter final : public LearnedRouter {
 public:
  PolicyGradientRouter(const PolicyGradientConfig& config, const Builder& builder)
      : LearnedRouter(config, builder), config_(config) {}

  Routing route(const Tensor& x_ND, Context& context) const override {
    const Tensor z_NE = logits(x_ND, context), p_NE = ops::softmax(z_NE);
    // the k largest of logits with Gumbel noise are k draws without putting back
    const Tensor expert_NK = chosen(context, [&] {
      const at::NoGradGuard no_gradients;
      return largest(context.training ? z_NE + gumbel_by_token(context, name() + ".draw",
                                                               z_NE.size(0), z_NE.size(1))
                                                   .to(z_NE.options())
                                      : z_NE,
                     config_.k);
    });
    report(z_NE, p_NE, expert_NK, context);
    if (context.training && p_NE.requires_grad()) {
      const Tensor p_NK = p_NE.gather(1, expert_NK.to(p_NE.device()));
      // what is left to each draw
      const Tensor left_NK = (1 - (p_NK.cumsum(1) - p_NK)).clamp_min(1e-9);
      context.values.put(fmt::format("{}{} {}", kPolicy, name(), context.layer),
                         (p_NK.clamp_min(1e-9) / left_NK).log().sum(1) * config_.weight);
    }
    return {expert_NK, at::full(expert_NK.sizes(), 1.0 / static_cast<double>(config_.k),
                                x_ND.options().dtype(ops::wide(x_ND)))};
  }

 private:
  PolicyGradientConfig config_;
};

}  // namespace

std::unique_ptr<Router> build(const PolicyGradientConfig& config, const Builder& builder) {
  return std::make_unique<PolicyGradientRouter>(config, builder);
}

}  // namespace tessera::nn
