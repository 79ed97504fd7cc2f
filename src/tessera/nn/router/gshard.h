// Two experts a token, of limited room (capacity.h), the second one by chance in training.
//   p = softmax(W x);  g1 the largest, g2 the largest of the rest;  weights g1 and g2 / (g1 + g2)
//   second: random    used with probability min(1, 2 g2)
//           sampling  the best of the rest by logits with Gumbel noise
//           all       always
// After dropping, `normalise` after divides by what is left: the only expert then weighs 1.
// Lepikhin et al. 2020, arXiv:2006.16668, alg. 1.
#pragma once

#include "tessera/nn/router/capacity.h"

namespace tessera::nn {

enum class SecondExpert { random, sampling, all };
enum class Normalise { before, after };

struct GshardConfig final : CapacityConfig {
  SecondExpert second = SecondExpert::random;
  Normalise normalise = Normalise::before;

  GshardConfig() {
    losses.balance = BalanceLoss::switch_;
    capacity_factor = 1;
  }
  static constexpr auto fields() {
    using C = GshardConfig;
    return std::tuple_cat(
        std::tuple{spec::field("second", &C::second, "how the second expert is used in training"),
                   spec::field("normalise", &C::normalise,
                               "whether weights are made to add up to 1 before or after dropping")},
        capacity_fields<C>());
  }
  static spec::Info info() {
    return {.summary = "Two experts for every token, with room for a share of the tokens.",
            .paper =
                "Lepikhin et al.: GShard: Scaling Giant Models with Conditional Computation "
                "and Automatic Sharding, arXiv:2006.16668",
            .year = 2020,
            .causality = spec::Causality::selection,
            .forms = {.recurrent = true}};
  }
  void check(const spec::Scope& scope) const override {
    CapacityConfig::check(scope);
    require_at_most("experts of a token", 2, scope.n_experts, scope);
  }
  double used(const spec::Scope&) const override { return 2; }
};

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::SecondExpert> {
  using S = nn::SecondExpert;
  static constexpr std::array names{std::pair{S::random, "random"},
                                    std::pair{S::sampling, "sampling"}, std::pair{S::all, "all"}};
};
template <>
struct tessera::spec::EnumNames<tessera::nn::Normalise> {
  using N = nn::Normalise;
  static constexpr std::array names{std::pair{N::before, "before"}, std::pair{N::after, "after"}};
};
