// A router that learns from how well its tokens were predicted: no gradient passes its weights,
// which are 1 / k. In training the k experts are drawn one after another from p = softmax(W x),
//   ln pi = sum_j ln p(e_j) / (1 - sum_{i < j} p(e_i))        (Plackett-Luce),
// and the score-function estimator (REINFORCE: Williams 1992) moves W against
//   sum_n (l_n - mean l) grad ln pi_n,   l_n the token's own cross-entropy,
// times `weight`, over the targets of the update. In inference the k best are taken. Bengio et al.
// 2015, arXiv:1511.06297 (conditional computation by policy gradient); Rosenbaum et al. 2017,
// arXiv:1711.01239 (routing networks).
#pragma once

#include "tessera/nn/router/router_config.h"

namespace tessera::nn {

struct PolicyGradientConfig final : LearnedRouterConfig {
  int64_t k = 1;
  double weight = 1;

  static constexpr auto fields() {
    using C = PolicyGradientConfig;
    return std::tuple_cat(
        std::tuple{spec::field("k", &C::k, "experts of a token", {.min = 1}),
                   spec::field("weight", &C::weight, "factor on the estimator", {.min = 0})},
        common_fields<C>());
  }
  static spec::Info info() {
    return {.summary = "Experts drawn by probabilities that learn from the losses of their tokens.",
            .paper =
                "Bengio et al.: Conditional Computation in Neural Networks for faster models, "
                "arXiv:1511.06297; Rosenbaum et al.: Routing Networks, arXiv:1711.01239",
            .year = 2015,
            .forms = {.recurrent = true}};
  }
  void check(const spec::Scope& scope) const override {
    require_at_most("k", k, scope.n_experts, scope);
  }
  double used(const spec::Scope&) const override { return static_cast<double>(k); }
  bool by_token() const override { return false; }
  bool by_reward() const override { return true; }
};

/// Where its part of an update is found among the values of a call: weight * ln pi [N], of every
/// such router by its name and layer.
inline constexpr const char* kPolicy = "policy of ";

}  // namespace tessera::nn
