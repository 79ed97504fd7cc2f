// Mixture of attention heads: a router gives every token a few attention experts, each with
// queries and an output of its own; keys and values are one for all.
//   q_j = W_q[e_j] x,  k, v = W_k x, W_v x;  o_j = attention(q_j, k, v) by heads
//   y = sum_j w_j W_o[e_j] o_j + b
// in the order of the choices j. Head g of every expert reads key/value head g. The state holds the
// keys and values alone. Zhang et al. 2022, arXiv:2210.05144 (mixture of attention heads); Shen et
// al. 2024, arXiv:2404.07413 (JetMoE). Golden: tools/golden/attention_experts.py.
#pragma once

#include "tessera/nn/pattern/pattern_config.h"
#include "tessera/nn/router/router_config.h"

namespace tessera::nn {

struct AttentionExpertsConfig final : spec::Config {
  int64_t n_heads = 0;
  int64_t head_dim = 0;
  int64_t n_experts = 0;
  spec::Part<spec::Slot::router> router;
  bool bias = false;
  spec::Part<spec::Slot::pattern> pattern;
  spec::Part<spec::Slot::position> position;

  static constexpr auto fields() {
    using C = AttentionExpertsConfig;
    using spec::field;
    return std::tuple{
        field("n_heads", &C::n_heads, "heads of an expert, and of keys and values",
              {.min = 1, .required = true}),
        field("head_dim", &C::head_dim, "width of one head; 0 = d_model / n_heads", {.min = 0}),
        field("n_experts", &C::n_experts, "E", {.min = 1, .required = true}),
        field("router", &C::router, "who computes which token", {.part = "top_k"}),
        field("bias", &C::bias, "whether the sum of the experts has a bias"),
        field("pattern", &C::pattern, "who sees whom, the same for all heads", {.part = "full"}),
        field("position", &C::position, "how order enters", {.part = "none"})};
  }
  static spec::Info info() {
    return {.summary =
                "A few attention experts of many for every token, over keys and values that all "
                "share.",
            .paper =
                "Zhang et al.: Mixture of Attention Heads: Selecting Attention Heads Per Token, "
                "arXiv:2210.05144; Shen et al.: JetMoE, arXiv:2404.07413",
            .year = 2022,
            .forms = {.recurrent = true}};
  }
  static spec::Json example(const spec::Scope&, int64_t) { return {{"n_experts", 8}}; }
  int64_t width_of_head(const spec::Scope& scope) const {
    return head_dim > 0 ? head_dim : n_heads > 0 ? scope.d_model / n_heads : 0;
  }
  spec::Scope child_scope(spec::Scope scope, std::string_view name) const {
    if (name == "router") {
      scope.n_experts = n_experts;
      return scope;
    }
    scope.width = width_of_head(scope);
    scope.n_heads = n_heads;
    if (name == "position") scope.places = {.rotation = true};
    return scope;
  }
  void complete(const spec::Scope& scope) override;
  void check(const spec::Scope& scope) const override;
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
  std::vector<spec::StateDecl> state(const spec::Scope& scope) const override;
  std::string no_state_reason() const override { return router.config->no_state_reason(); }
  double extra_flops(const spec::Scope& scope, int64_t context) const override;

  const PatternConfig& pattern_config() const { return pattern.as<PatternConfig>(); }

 private:
  /// Experts that compute a token, on average.
  double used(const spec::Scope& scope) const;
};

}  // namespace tessera::nn
