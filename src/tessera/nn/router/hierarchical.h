// Two levels: a gate over G groups of equally many experts, and one over the experts of each.
//   a = softmax over the k_groups largest of W_g x;  b_g = softmax over the k largest logits of the
//   experts of group g;  the weight of expert i of group g is a_g b_{g,i}
// Each level has the losses. Shazeer et al. 2017, arXiv:1701.06538, appendix B.
#pragma once

#include "tessera/nn/router/router_config.h"

namespace tessera::nn {

struct HierarchicalConfig final : LearnedRouterConfig {
  int64_t n_groups = 2;
  int64_t k_groups = 1;
  int64_t k = 1;

  static constexpr auto fields() {
    using C = HierarchicalConfig;
    return std::tuple_cat(
        std::tuple{spec::field("n_groups", &C::n_groups, "G; divides the experts", {.min = 1}),
                   spec::field("k_groups", &C::k_groups, "groups of a token", {.min = 1}),
                   spec::field("k", &C::k, "experts of each of its groups", {.min = 1})},
        common_fields<C>());
  }
  static spec::Info info() {
    return {.summary = "A gate over groups of experts, and one over the experts of each group.",
            .paper =
                "Shazeer et al.: Outrageously Large Neural Networks: The Sparsely-Gated "
                "Mixture-of-Experts Layer, arXiv:1701.06538",
            .year = 2017,
            .forms = {.recurrent = true}};
  }
  void check(const spec::Scope& scope) const override {
    if (scope.n_experts % n_groups != 0)
      fail(ErrorKind::spec, scope.path, "n_groups = {} does not divide {} experts", n_groups,
           scope.n_experts);
    if (k_groups > n_groups)
      fail(ErrorKind::spec, scope.path, "k_groups = {} of {} groups; expected at most {}", k_groups,
           n_groups, n_groups);
    require_at_most("k", k, scope.n_experts / n_groups, scope);
  }
  void params(spec::ParamList& list, const spec::Scope& scope) const override {
    list.linear("group", n_groups, scope.input_width(), /*bias=*/false);
    list.linear("gate", scope.n_experts, scope.input_width(), /*bias=*/false);
  }
  double used(const spec::Scope&) const override { return static_cast<double>(k_groups * k); }
};

}  // namespace tessera::nn
