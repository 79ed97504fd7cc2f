// Experts by chance, with weight 1/k: k different ones for every token. In training they are drawn
// again every step; outside it they follow from the token's id and position, so that a text has the
// same experts in every batch. Zuo et al. 2021, arXiv:2110.04260, sec. 3 (THOR).
#pragma once

#include "tessera/nn/router/router_config.h"

namespace tessera::nn {

struct RandomRouterConfig final : RouterConfig {
  int64_t k = 1;
  int64_t seed = 0;

  static constexpr auto fields() {
    using C = RandomRouterConfig;
    return std::tuple{spec::field("k", &C::k, "experts of a token", {.min = 1}),
                      spec::field("seed", &C::seed, "of the draws outside training", {.min = 0})};
  }
  static spec::Info info() {
    return {.summary = "Experts by chance.",
            .paper =
                "Zuo et al.: Taming Sparsely Activated Transformer with Stochastic Experts, "
                "arXiv:2110.04260",
            .year = 2021,
            .forms = {.recurrent = true}};
  }
  void check(const spec::Scope& scope) const override {
    require_at_most("k", k, scope.n_experts, scope);
  }
  double used(const spec::Scope&) const override { return static_cast<double>(k); }
  bool by_token() const override { return false; }
};

}  // namespace tessera::nn
