// One expert a token, of limited room (capacity.h): p = softmax(W x), e the best, y = p_e F_e(x).
// Its own balance loss is `switch`. Fedus, Zoph, Shazeer 2021, arXiv:2101.03961, sec. 2.1.
// With `order` by_probability the tokens that are surest fill the room first. Riquelme et al. 2021,
// arXiv:2106.05974, sec. 4 (batch prioritised routing).
#pragma once

#include "tessera/nn/router/capacity.h"

namespace tessera::nn {

enum class FillOrder { position, by_probability };

struct SwitchConfig final : CapacityConfig {
  FillOrder order = FillOrder::position;
  bool bias = false;

  SwitchConfig() {
    losses.balance = BalanceLoss::switch_;
    jitter = 0.01;
  }
  static constexpr auto fields() {
    using C = SwitchConfig;
    return std::tuple_cat(
        std::tuple{spec::field("order", &C::order, "which tokens have room first"),
                   spec::field("bias", &C::bias, "whether p = softmax(W x + b)")},
        capacity_fields<C>());
  }
  static spec::Info info() {
    return {.summary = "One expert for every token, with room for a share of the tokens.",
            .paper =
                "Fedus, Zoph, Shazeer: Switch Transformers: Scaling to Trillion Parameter "
                "Models with Simple and Efficient Sparsity, arXiv:2101.03961",
            .year = 2021,
            .causality = spec::Causality::selection,
            .forms = {.recurrent = true}};
  }
  double used(const spec::Scope&) const override { return 1; }
  void params(spec::ParamList& list, const spec::Scope& scope) const override {
    list.linear("gate", scope.n_experts, scope.input_width(), bias);
  }
};

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::FillOrder> {
  using F = nn::FillOrder;
  static constexpr std::array names{std::pair{F::position, "position"},
                                    std::pair{F::by_probability, "by_probability"}};
};
