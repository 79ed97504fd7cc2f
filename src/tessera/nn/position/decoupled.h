// Decoupled positions: content ("knowledge") and position live in separate parameters, and their
// scores are added; nothing is added to the input.
//   untied:    TUPE without its options
//   diet_abs:  s_ij = scale q_i . k_j + P_i . R_j, free vectors per head and position
//   diet_rel:  s_ij = scale q_i . k_j + b_h[clip(j - i, -max_distance, max_distance)]
// Without the position parameters each is attention without positions; swapping the contents of two
// positions leaves the position scores alone.
// Chen et al. 2021, arXiv:2104.08698; Ke, He, Liu 2020, arXiv:2006.15595.
#pragma once

#include "tessera/nn/position/position_config.h"

namespace tessera::nn {

enum class DecoupledVariant { untied, diet_abs, diet_rel };

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::DecoupledVariant> {
  using V = nn::DecoupledVariant;
  static constexpr std::array names{std::pair{V::untied, "untied"},
                                    std::pair{V::diet_abs, "diet_abs"},
                                    std::pair{V::diet_rel, "diet_rel"}};
};

namespace tessera::nn {

struct DecoupledConfig final : PositionConfig {
  DecoupledVariant variant = DecoupledVariant::diet_abs;
  int64_t n_positions = 512;
  int64_t rank = 0;
  int64_t max_distance = 128;
  std::string share;

  static constexpr auto fields() {
    using C = DecoupledConfig;
    using spec::field;
    return std::tuple{
        field("variant", &C::variant, "how positions are compared"),
        field("n_positions", &C::n_positions, "positions of the tables (untied, diet_abs)",
              {.min = 1}),
        field("rank", &C::rank, "width of the vectors of diet_abs; 0 = head_dim", {.min = 0}),
        field("max_distance", &C::max_distance, "greater distances count as this one (diet_rel)",
              {.min = 0}),
        field("share", &C::share, "layers with the same id share all parameters; \"\" = own")};
  }
  static spec::Json example(const spec::Scope&, int64_t length) {
    return {{"n_positions", length}};
  }
  static spec::Info info() {
    return {.summary = "Scores of content and of position from separate parameters, added.",
            .paper =
                "Chen et al.: A Simple and Effective Positional Encoding for Transformers, "
                "arXiv:2104.08698",
            .year = 2021,
            .forms = {.recurrent = true},
            .place = spec::Place::score_bias};
  }
  void complete(const spec::Scope& scope) override {
    if (rank == 0) rank = scope.width;
  }
  bool by_distance() const override { return variant == DecoupledVariant::diet_rel; }
  void check(const spec::Scope& scope) const override {
    require_scores("decoupled", scope);
    check_share(share, scope);
  }
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
  int64_t max_positions() const override {
    return variant == DecoupledVariant::diet_rel ? 0 : n_positions;
  }
  /// The "tupe" that `untied` is.
  spec::AnyPart tupe(const spec::Scope& scope) const;
};

}  // namespace tessera::nn
