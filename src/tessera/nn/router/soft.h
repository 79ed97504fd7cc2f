// Soft mixture: experts read mixtures of a document's tokens, `slots` of them each.
//   L = X Phi^T [T, E s], or a l2(X) l2(Phi)^T with a learned number a if `normalise` is set
//   D = softmax of L over tokens, C = softmax of L over slots;  slot inputs D^T X, outputs C Y
// Nothing is chosen, dropped or unbalanced; every slot sees all tokens: an encoder's.
// Puigcerver et al. 2023, arXiv:2308.00951, sec. 2.1 and 2.3.
#pragma once

#include "tessera/nn/router/router_config.h"

namespace tessera::nn {

struct SoftRouterConfig final : RouterConfig {
  int64_t slots = 1;
  bool normalise = true;

  static constexpr auto fields() {
    using C = SoftRouterConfig;
    return std::tuple{spec::field("slots", &C::slots, "mixtures that an expert reads", {.min = 1}),
                      spec::field("normalise", &C::normalise,
                                  "whether tokens and slots are compared by direction alone")};
  }
  static spec::Info info() {
    return {.summary =
                "Experts read mixtures of all tokens of a document, and tokens mixtures of "
                "their outputs.",
            .paper = "Puigcerver et al.: From Sparse to Soft Mixtures of Experts, arXiv:2308.00951",
            .year = 2023,
            .causality = spec::Causality::none,
            .forms = {.recurrent = false}};
  }
  void check(const spec::Scope& scope) const override {
    if (scope.causal)
      fail(ErrorKind::spec, scope.path,
           "router \"soft\" needs an encoder: slots mix all tokens of a document, later ones "
           "included; expected one that chooses by token, such as \"top_k\"");
  }
  void params(spec::ParamList& list, const spec::Scope& scope) const override {
    list.linear("slots", scope.n_experts * slots, scope.input_width(), /*bias=*/false);
    list.add_if(normalise, {"scale", {1}, spec::Init::constant(1), spec::ParamKind::structural});
  }
  double used(const spec::Scope& scope) const override {
    return static_cast<double>(scope.n_experts);
  }
  bool by_token() const override { return false; }
  bool chooses() const override { return false; }
};

}  // namespace tessera::nn
