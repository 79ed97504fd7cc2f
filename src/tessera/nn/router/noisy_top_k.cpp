#include "tessera/nn/router/noisy_top_k.h"

#include "tessera/nn/checkpointing.h"
#include "tessera/nn/router/routing.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/basic/pointwise.h"
#include "tessera/ops/basic/softmax.h"

namespace tessera::nn {
namespace {

class NoisyTopKRouter final : public LearnedRouter {
 public:
  NoisyTopKRouter(const NoisyTopKConfig& config, const Builder& builder)
      : LearnedRouter(config, builder), config_(config), noise_(builder, "noise") {}

  Routing route(const Tensor& x_ND, Context& context) const override {
    const Tensor clean_NE = logits(x_ND, context);
    Tensor deviation_NE, h_NE = clean_NE;
    if (context.training) {
      deviation_NE =
          ops::softplus(noise_(x_ND.to(clean_NE.scalar_type()), context)) + kLeastDeviation;
      h_NE = clean_NE + deviation_NE * drawn_by_token(context, name() + ".noise", x_ND.size(0),
                                                      n_experts(),
                                                      [](const RandomKey& stream, uint64_t i) {
                                                        return stream.normal(i);
                                                      })
                                           .to(clean_NE.options());
    }
    const Tensor expert_NK = chosen(context, [&] { return largest(h_NE, config_.k); });
    const Tensor at_NK = expert_NK.to(x_ND.device());
    const Tensor w_NK = ops::softmax(h_NE.gather(1, at_NK));
    report(clean_NE, ops::softmax(clean_NE), expert_NK, context);
    if (context.training && context.add_loss) {
      const auto n = static_cast<double>(x_ND.size(0));
      const Tensor gates_NE = at::zeros(h_NE.sizes(), h_NE.options()).scatter(1, at_NK, w_NK);
      if (config_.importance_weight > 0)
        context.add_loss("importance", cv_squared(ops::ordered_sum(gates_NE, {0})) *
                                           (config_.importance_weight * n));
      if (config_.load_weight > 0 && config_.k < n_experts())
        context.add_loss("load",
                         cv_squared(ops::ordered_sum(
                             chance_to_be_chosen(clean_NE, deviation_NE, h_NE, config_.k), {0})) *
                             (config_.load_weight * n));
    }
    return {expert_NK, w_NK};
  }

 private:
  // a deviation of 0 would have no chance to choose otherwise
  static constexpr double kLeastDeviation = 1e-2;

  NoisyTopKConfig config_;
  Linear noise_;
};

}  // namespace

std::unique_ptr<Router> build(const NoisyTopKConfig& config, const Builder& builder) {
  return std::make_unique<NoisyTopKRouter>(config, builder);
}

}  // namespace tessera::nn
