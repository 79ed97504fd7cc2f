#include "tessera/nn/router/hierarchical.h"

#include "tessera/nn/checkpointing.h"
#include "tessera/nn/router/routing.h"
#include "tessera/ops/basic/softmax.h"

namespace tessera::nn {
namespace {

/// The weights of the chosen columns: softmax over these, or of the only one its probability.
Tensor weights(const Tensor& z, const Tensor& chosen) {
  return chosen.size(1) == 1 ? ops::softmax(z).gather(1, chosen)
                             : ops::softmax(z.gather(1, chosen));
}

class HierarchicalRouter final : public LearnedRouter {
 public:
  HierarchicalRouter(const HierarchicalConfig& config, const Builder& builder)
      : LearnedRouter(config, builder), config_(config), group_(builder, "group") {}

  Routing route(const Tensor& x_ND, Context& context) const override {
    const Tensor z_NE = logits(x_ND, context);
    const Tensor z_NG = exact_logits(group_, x_ND.to(z_NE.scalar_type()), context);
    const int64_t n = z_NE.size(0), groups = config_.n_groups, each = n_experts() / groups;
    const Tensor group_NJ = chosen(context, [&] { return largest(z_NG, config_.k_groups); });
    const Tensor at_NJ = group_NJ.to(z_NE.device());
    const Tensor a_NJ = weights(z_NG, at_NJ);
    // the logits of the chosen groups' experts, one row for each group
    const Tensor z_RE = z_NE.reshape({n, groups, each})
                            .gather(1, at_NJ.unsqueeze(-1).expand({-1, -1, each}))
                            .reshape({-1, each});
    const Tensor inner_RK = chosen(context, [&] { return largest(z_RE, config_.k); });
    const Tensor b_RK = weights(z_RE, inner_RK.to(z_RE.device()));
    const Tensor expert_NK =
        (inner_RK.reshape({n, -1, config_.k}) + group_NJ.unsqueeze(-1) * each).reshape({n, -1});
    const Tensor w_NK = (b_RK.reshape({n, -1, config_.k}) * a_NJ.unsqueeze(-1)).reshape({n, -1});
    report(z_NG, ops::softmax(z_NG), group_NJ, context, ".groups");
    const Tensor p_NE =
        (ops::softmax(z_NE.reshape({n, groups, each})) * ops::softmax(z_NG).unsqueeze(-1))
            .reshape({n, -1});
    report(z_NE, p_NE, expert_NK, context);
    return {expert_NK, w_NK};
  }

 private:
  HierarchicalConfig config_;
  Linear group_;
};

}  // namespace

std::unique_ptr<Router> build(const HierarchicalConfig& config, const Builder& builder) {
  return std::make_unique<HierarchicalRouter>(config, builder);
}

}  // namespace tessera::nn
