#include "tessera/nn/router/hash.h"

#include <cmath>

#include "tessera/nn/router/routing.h"

namespace tessera::nn {
namespace {

class HashedRouter final : public Router {
 public:
  HashedRouter(const HashRouterConfig& config, const Builder& builder)
      : config_(config), name_(builder.prefix()), n_experts_(builder.scope().n_experts) {
    if (config.weights != HashWeights::equal) gate_ = Linear(builder, "gate");
    const WeightPtr table = builder.optional("table");
    if (table == nullptr) return;
    const Tensor numbers = table->tensor().detach().to(at::kCPU, at::kDouble).contiguous();
    const auto* expert = numbers.const_data_ptr<double>();
    for (int64_t i = 0; i < numbers.numel(); ++i)
      if (!(expert[i] >= 0 && expert[i] < static_cast<double>(n_experts_)) ||
          expert[i] != std::floor(expert[i]))
        fail(ErrorKind::file, table->name(), "expert {} of token {}; expected one of 0 to {}",
             expert[i], i / config.k, n_experts_ - 1);
    expert_VK_ = numbers.to(at::kLong).reshape({-1, config.k});
  }

  Routing route(const Tensor& x_ND, Context& context) const override {
    const Tensor ids_N = context.batch->ids_N.to(at::kCPU, at::kLong);
    require(ids_N.size(0) == x_ND.size(0), name_, "{} token ids of a call; {} are routed",
            ids_N.size(0), x_ND.size(0));
    const Tensor expert_NK = expert_VK_.defined() ? expert_VK_.index_select(0, ids_N)
                                                  : hashed(ids_N, context.batch->before_NM);
    count_choices(context, name_, expert_NK, n_experts_);
    return {expert_NK, weights(x_ND, expert_NK, context)};
  }

 private:
  Tensor weights(const Tensor& x_ND, const Tensor& expert_NK, const Context& context) const {
    const auto type = ops::wide(x_ND);
    if (!gate_.weight)
      return at::full(expert_NK.sizes(), 1.0 / static_cast<double>(config_.k),
                      x_ND.options().dtype(type));
    const RouterScore score = config_.weights == HashWeights::softmax ? RouterScore::softmax
                              : config_.weights == HashWeights::sigmoid
                                  ? RouterScore::sigmoid
                                  : RouterScore::sqrt_softplus;
    const Tensor z_NE = exact_logits(gate_, x_ND.to(type), context);
    return normed_weights(router_scores(z_NE, score).gather(1, expert_NK.to(z_NE.device())), 1);
  }
  Tensor hashed(const Tensor& ids_N, const Tensor& before_NM) const {
    require(before_NM.defined() && before_NM.size(1) >= config_.ids - 1, name_,
            "a call without the {} ids before each token", config_.ids - 1);
    const Tensor run_NM =
        at::cat({ids_N.unsqueeze(1), before_NM.narrow(1, 0, config_.ids - 1).to(at::kCPU)}, 1)
            .contiguous();
    Tensor expert_N1 = at::empty({ids_N.size(0), 1}, at::kLong);
    const std::span<const int64_t> runs(run_NM.const_data_ptr<int64_t>(),
                                        static_cast<size_t>(run_NM.numel()));
    const auto n = static_cast<size_t>(config_.ids);
    for (int64_t i = 0; i < ids_N.size(0); ++i)
      expert_N1.data_ptr<int64_t>()[i] =
          config_.expert(runs.subspan(static_cast<size_t>(i) * n, n), n_experts_);
    return expert_N1;
  }

  HashRouterConfig config_;
  std::string name_;
  int64_t n_experts_ = 0;
  Linear gate_;       // of learned weights
  Tensor expert_VK_;  // undefined where runs of ids are hashed
};

}  // namespace

std::unique_ptr<Router> build(const HashRouterConfig& config, const Builder& builder) {
  return std::make_unique<HashedRouter>(config, builder);
}

}  // namespace tessera::nn
