// CoPE: positions counted by content. A gate per key is open if it counts; the position of a key
// is the number of gates that are open between it and the query, and reads a learned table between
// its rows.
//   g_ij = sigmoid(scale q_i . k_j);   p_ij = min(sum_(k = j .. i) g_ik, P - 1)
//   b_ij = (p - floor p) q_i . e[ceil p] + (1 - p + floor p) q_i . e[floor p]
// Golovneva et al. 2024, arXiv:2405.18719. Golden: additions 5.2.
#pragma once

#include "tessera/nn/position/position_config.h"

namespace tessera::nn {

struct CopeConfig final : PositionConfig {
  int64_t n_positions = 0;
  bool per_head = false;
  bool scaled = false;

  bool takes_scale() const override { return true; }
  bool counts_keys() const override { return true; }
  static constexpr auto fields() {
    using C = CopeConfig;
    return std::tuple{
        spec::field("n_positions", &C::n_positions, "rows of the table, P",
                    {.min = 2, .required = true}),
        spec::field("per_head", &C::per_head, "a table for each head; else one for all"),
        spec::field("scaled", &C::scaled,
                    "the bias, too, takes the factor on the scores (the released code)")};
  }
  static spec::Json example(const spec::Scope&, int64_t) { return {{"n_positions", 64}}; }
  static spec::Info info() {
    return {.summary = "Positions are sums of gates that queries open for keys.",
            .paper =
                "Golovneva et al.: Contextual Position Encoding: Learning to Count What's "
                "Important, arXiv:2405.18719",
            .year = 2024,
            .forms = {.recurrent = true},
            .place = spec::Place::score_bias};
  }
  void check(const spec::Scope& scope) const override {
    require_scores("cope", scope);
    if (!scope.causal)
      fail(ErrorKind::spec, scope.path,
           "cope counts keys backwards from the query and cannot stand in an encoder; use \"t5\" "
           "or \"shaw\" there");
  }
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
};

}  // namespace tessera::nn
