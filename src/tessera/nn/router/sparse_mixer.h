// SparseMixer-v2: two experts in two rounds, each with a softmax over those that come near the
// best. In each round, with the first choice left out of the second one's,
//   M = the largest logit z_i;  i is out iff (M - z_i) / max(|z_i|, M) > 2 eps
//   p = softmax over the others;  the expert is the best one, its weight p of it
// In training the expert is drawn from p; one that is not the best weighs a third of its p except
// with probability 1/4, and the gradient is that of p. The two weights are not divided by their
// sum. Liu et al. 2024, arXiv:2409.12136 (GRIN, Phi-3.5-MoE).
#pragma once

#include "tessera/nn/router/router_config.h"

namespace tessera::nn {

struct SparseMixerConfig final : LearnedRouterConfig {
  double eps = 0.01;

  static constexpr auto fields() {
    using C = SparseMixerConfig;
    return std::tuple_cat(
        std::tuple{
            spec::field("eps", &C::eps, "half the relative distance that competes", {.min = 0})},
        common_fields<C>());
  }
  static spec::Info info() {
    return {.summary = "Two experts in two rounds among those that come near the best.",
            .paper = "Liu et al.: GRIN: GRadient-INformed MoE, arXiv:2409.12136",
            .year = 2024,
            .forms = {.recurrent = true}};
  }
  bool by_token() const override { return false; }
  void check(const spec::Scope& scope) const override {
    if (scope.n_experts < 2)
      fail(ErrorKind::spec, scope.path, "{} expert; expected two or more", scope.n_experts);
  }
  double used(const spec::Scope&) const override { return 2; }
};

}  // namespace tessera::nn
