// As many experts as a token needs.
//   p = softmax(W x);  cumulative: the fewest experts, the best first, whose p add up to
//   `probability`;  threshold: those with p_i > probability; the best one in any case.
// The weights are p, divided by their sum if `norm` is set. Huang et al. 2024,
// arXiv:2403.07652, eq. 4.
#pragma once

#include "tessera/nn/router/router_config.h"

namespace tessera::nn {

enum class ProbabilityRule { cumulative, threshold };

struct TopPConfig final : LearnedRouterConfig {
  double probability = 0.4;
  ProbabilityRule rule = ProbabilityRule::cumulative;
  int64_t most = 0;
  bool norm = false;

  static constexpr auto fields() {
    using C = TopPConfig;
    return std::tuple_cat(
        std::tuple{spec::field("probability", &C::probability, "what is to be reached, in [0, 1]",
                               {.min = 0, .max = 1}),
                   spec::field("rule", &C::rule, "how the probability bounds the experts"),
                   spec::field("most", &C::most, "experts of a token at most; 0 = all", {.min = 0}),
                   spec::field("norm", &C::norm, "whether the weights are divided by their sum")},
        common_fields<C>());
  }
  static spec::Info info() {
    return {.summary = "Experts of every token until their probabilities suffice.",
            .paper =
                "Huang et al.: Harder Tasks Need More Experts: Dynamic Routing in MoE Models, "
                "arXiv:2403.07652",
            .year = 2024,
            .forms = {.recurrent = true}};
  }
  void check(const spec::Scope& scope) const override {
    require_at_most("most", most, scope.n_experts, scope);
  }
  double used(const spec::Scope& scope) const override {
    return static_cast<double>(most > 0 ? most : scope.n_experts);
  }
};

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::ProbabilityRule> {
  using R = nn::ProbabilityRule;
  static constexpr std::array names{std::pair{R::cumulative, "cumulative"},
                                    std::pair{R::threshold, "threshold"}};
};
