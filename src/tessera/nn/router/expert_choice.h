// Experts choose tokens: p = softmax(W x) over experts, and each expert computes the
// C = ceil(capacity_factor S / E) tokens of a document of S with the largest p of it, weighted by
// p. The experts are equally busy without a loss; a token may have none of them, or all. What a
// token gets turns on all tokens of its document: an encoder's. Zhou et al. 2022, arXiv:2202.09368,
// sec. 3.2.
#pragma once

#include "tessera/nn/router/router_config.h"

namespace tessera::nn {

struct ExpertChoiceConfig final : RouterConfig {
  double capacity_factor = 2;

  static constexpr auto fields() {
    return std::tuple{spec::field("capacity_factor", &ExpertChoiceConfig::capacity_factor,
                                  "experts that a token has on average", {.min = 1e-9})};
  }
  static spec::Info info() {
    return {.summary = "Every expert chooses its tokens of a document.",
            .paper = "Zhou et al.: Mixture-of-Experts with Expert Choice Routing, arXiv:2202.09368",
            .year = 2022,
            .causality = spec::Causality::none,
            .forms = {.recurrent = false}};
  }
  void check(const spec::Scope& scope) const override {
    if (scope.causal)
      fail(ErrorKind::spec, scope.path,
           "router \"expert_choice\" needs an encoder: experts choose among all tokens of a "
           "document, later ones included; expected one that chooses by token, such as \"top_k\"");
  }
  void params(spec::ParamList& list, const spec::Scope& scope) const override {
    list.linear("gate", scope.n_experts, scope.input_width(), /*bias=*/false);
  }
  double used(const spec::Scope& scope) const override {
    return std::min(capacity_factor, static_cast<double>(scope.n_experts));
  }
  bool by_token() const override { return false; }
};

}  // namespace tessera::nn
