// TUPE: position and content are compared apart, with projections of their own.
//   s_ij = (q_i . k_j + (U_q p_i) . (U_k p_j)) / sqrt(2 D) [+ b_bucket(j - i)],   p = N(table)
// untie_cls: token 0 represents the whole sequence; all scores from it are one number and all
// scores to it are another, taken from an extra row of the table.
// A bias of U_k shows in the untied scores only, so only there it exists.
// Ke, He, Liu 2020, arXiv:2006.15595. Golden: positions 7.
#pragma once

#include "tessera/nn/position/position_config.h"

namespace tessera::nn {

struct TupeConfig final : PositionConfig {
  int64_t n_positions = 0;
  bool untie_cls = false;
  int64_t buckets = 0;
  int64_t max_distance = 128;
  spec::Part<spec::Slot::norm> norm;
  std::string share;

  static constexpr auto fields() {
    using C = TupeConfig;
    using spec::field;
    return std::tuple{
        field("n_positions", &C::n_positions, "positions of the table",
              {.min = 1, .required = true}),
        field("untie_cls", &C::untie_cls, "scores from and to token 0 know no positions"),
        field("buckets", &C::buckets,
              "relative buckets of both directions (TUPE-R), as in \"t5\"; 0 = none (TUPE-A)",
              {.min = 0}),
        field("max_distance", &C::max_distance, "distances from here on share a bucket",
              {.min = 2}),
        field("norm", &C::norm, "norm of the table", {.part = "layer_norm"}),
        field("share", &C::share, "layers with the same id share all parameters; \"\" = own")};
  }
  static spec::Json example(const spec::Scope&, int64_t length) {
    return {{"n_positions", length}};
  }
  static spec::Info info() {
    return {.summary = "Positions are compared with each other by projections of their own.",
            .paper =
                "Ke, He, Liu: Rethinking Positional Encoding in Language Pre-training, "
                "arXiv:2006.15595",
            .year = 2020,
            .forms = {.recurrent = true},
            .place = spec::Place::score_bias};
  }
  spec::Scope child_scope(spec::Scope scope, std::string_view) const {
    scope.width = scope.d_model;
    return scope;
  }
  void check(const spec::Scope& scope) const override;
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
  int64_t max_positions() const override { return n_positions; }
};

}  // namespace tessera::nn
