#include "tessera/nn/router/top_p.h"

#include "tessera/nn/checkpointing.h"
#include "tessera/nn/router/routing.h"
#include "tessera/ops/basic/softmax.h"

namespace tessera::nn {
namespace {

class TopPRouter final : public LearnedRouter {
 public:
  TopPRouter(const TopPConfig& config, const Builder& builder)
      : LearnedRouter(config, builder), config_(config) {}

  Routing route(const Tensor& x_ND, Context& context) const override {
    const Tensor z_NE = logits(x_ND, context), p_NE = ops::softmax(z_NE);
    const Tensor expert_NK = chosen(context, [&] {
      const at::NoGradGuard no_gradients;
      return enough(p_NE);
    });
    Tensor w_NK = p_NE.gather(1, expert_NK.clamp_min(0).to(p_NE.device())) *
                  (expert_NK >= 0).to(p_NE.options());
    if (config_.norm) w_NK = w_NK / w_NK.sum(-1, /*keepdim=*/true);
    report(z_NE, p_NE, expert_NK, context);
    return {expert_NK, w_NK};
  }

 private:
  /// The best experts of every token while they are wanted, as many columns as the token with the
  /// most of them has; then -1.
  Tensor enough(const Tensor& p_NE) const {
    const int64_t most = config_.most > 0 ? config_.most : n_experts();
    const Tensor ranked = largest(p_NE, most);
    const Tensor p = p_NE.to(at::kCPU).gather(1, ranked);
    // the sum of those before, in the order of the ranks
    Tensor wanted = config_.rule == ProbabilityRule::cumulative
                        ? p.cumsum(1) - p < config_.probability
                        : p > config_.probability;
    wanted.select(1, 0).fill_(true);
    const int64_t columns = std::max<int64_t>(1, wanted.sum(1).max().item<int64_t>());
    return at::where(wanted, ranked, -1).narrow(1, 0, columns);
  }

  TopPConfig config_;
};

}  // namespace

std::unique_ptr<Router> build(const TopPConfig& config, const Builder& builder) {
  return std::make_unique<TopPRouter>(config, builder);
}

}  // namespace tessera::nn
