// Top-k of logits with learned noise.
//   H_i = (W x)_i + n_i sigma_i, sigma = softplus(W_n x) + 0.01, n_i standard normal, in training;
//   else H = W x
//   the k largest of H;  w = softmax over these k. Both matrices start at 0.
// Losses, with CV^2(v) = var(v) / mean(v)^2 over experts:
//   importance  CV^2(sum_x w_i(x))
//   load        CV^2(sum_x P(x, i)),  P(x, i) = Phi(((W x)_i - kth_i) / sigma_i), where
//               kth_i is the k-th largest of H without i: the probability that new noise for i
//               alone has it chosen. None where k is all experts.
// Shazeer et al. 2017, arXiv:1701.06538, sec. 2.1 and appendix A.
#pragma once

#include "tessera/nn/router/router_config.h"

namespace tessera::nn {

struct NoisyTopKConfig final : LearnedRouterConfig {
  int64_t k = 2;
  double importance_weight = 0.1;
  double load_weight = 0.1;

  static constexpr auto fields() {
    using C = NoisyTopKConfig;
    return std::tuple_cat(std::tuple{spec::field("k", &C::k, "experts of a token", {.min = 1}),
                                     spec::field("importance_weight", &C::importance_weight,
                                                 "factor of the importance loss", {.min = 0}),
                                     spec::field("load_weight", &C::load_weight,
                                                 "factor of the load loss", {.min = 0})},
                          common_fields<C>());
  }
  static spec::Info info() {
    return {.summary = "The k best experts by logits with learned noise in training.",
            .paper =
                "Shazeer et al.: Outrageously Large Neural Networks: The Sparsely-Gated "
                "Mixture-of-Experts Layer, arXiv:1701.06538",
            .year = 2017,
            .forms = {.recurrent = true}};
  }
  bool by_token() const override { return false; }
  void check(const spec::Scope& scope) const override {
    require_at_most("k", k, scope.n_experts, scope);
  }
  void params(spec::ParamList& list, const spec::Scope& scope) const override {
    for (const char* name : {"gate", "noise"})
      list.linear(name, scope.n_experts, scope.input_width(), /*bias=*/false,
                  spec::Init::constant(0));
  }
  double used(const spec::Scope&) const override { return static_cast<double>(k); }
  bool wants_balance() const override {
    return importance_weight == 0 && load_weight == 0 && LearnedRouterConfig::wants_balance();
  }
};

}  // namespace tessera::nn
