// FLASH: the gated attention unit in linear time. Inside groups of `group` tokens, counted from the
// document's beginning, it is quadratic; across groups it is linear attention.
//   [U, V, Z] = silu(W_in x);  q, k (quadratic) and q', k' (linear) = Z gamma_i + beta_i
//   decoder:  y = W_out U o (relu(q k^T / c + b)^2 V + q' sum_{earlier groups} k'^T V / c)
//   encoder:  the linear sum covers all T tokens, divided by T
// b is what a position scheme adds to the scores inside groups.
// Hua et al. 2022, arXiv:2202.10447, sec. 3 (mixed chunk attention, group c).
#pragma once

#include "tessera/nn/position/position_config.h"
#include "tessera/spec/fields.h"

namespace tessera::nn {

struct FlashGauConfig final : spec::Config {
  int64_t d_hidden = 0;
  int64_t d_key = 128;
  int64_t group = 256;
  spec::Part<spec::Slot::position> position;

  static constexpr auto fields() {
    using C = FlashGauConfig;
    using spec::field;
    return std::tuple{
        field("d_hidden", &C::d_hidden, "e, width of U and V; 0 = 2 d_model",
              {.min = 0, .width = true}),
        field("d_key", &C::d_key, "s, width of queries and keys", {.min = 1}),
        field("group", &C::group, "c, tokens that see each other quadratically", {.min = 1}),
        field("position", &C::position, "how order enters", {.part = "none"})};
  }
  static spec::Info info() {
    return {.summary = "Gated attention unit, quadratic inside groups and linear across them.",
            .paper = "Hua et al.: Transformer Quality in Linear Time, arXiv:2202.10447",
            .year = 2022,
            .forms = {.recurrent = true}};
  }
  spec::Scope child_scope(spec::Scope scope, std::string_view name) const {
    scope.width = d_key;
    scope.n_heads = 1;
    if (name == "position") scope.places = {.rotation = true, .score_bias = true};
    return scope;
  }
  void complete(const spec::Scope& scope) override {
    if (d_hidden == 0) d_hidden = 2 * scope.d_model;
  }
  void check(const spec::Scope& scope) const override;
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
  std::vector<spec::StateDecl> state(const spec::Scope& scope) const override;
  double extra_flops(const spec::Scope& scope, int64_t context) const override;
};

}  // namespace tessera::nn
