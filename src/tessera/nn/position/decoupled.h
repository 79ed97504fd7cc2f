// Decoupled positions: content ("knowledge") and position live in separate parameters, and their
// scores are added; nothing is added to the input.
//   untied:          TUPE without its options
//   diet_abs:        s_ij = scale q_i . k_j + P_i . R_j, free vectors per head and position
//   diet_rel:        s_ij = scale q_i . k_j + b_h[clip(j - i, -max_distance, max_distance)]
//   disentangled:    DeBERTa without its options: plus products of content and position
//   decoupled_rope:  rope on the first `rank` channels of a head, content alone in the others;
//                    latent_attention has this split in its projections
// Without the position parameters each but the last is attention without positions; of the first
// three the position scores stay as they are where the contents of two positions change places.
// Chen et al. 2021, arXiv:2104.08698; Ke, He, Liu 2020, arXiv:2006.15595.
#pragma once

#include "tessera/nn/position/position_config.h"

namespace tessera::nn {

enum class DecoupledVariant { untied, diet_abs, diet_rel, disentangled, decoupled_rope };

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::DecoupledVariant> {
  using V = nn::DecoupledVariant;
  static constexpr std::array names{
      std::pair{V::untied, "untied"}, std::pair{V::diet_abs, "diet_abs"},
      std::pair{V::diet_rel, "diet_rel"}, std::pair{V::disentangled, "disentangled"},
      std::pair{V::decoupled_rope, "decoupled_rope"}};
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
        field(
            "rank", &C::rank,
            "width of the vectors of diet_abs, 0 = head_dim; channels that decoupled_rope turns, 0 "
            "= half of the head",
            {.min = 0}),
        field("max_distance", &C::max_distance,
              "greater distances count as this one (diet_rel, disentangled)", {.min = 0}),
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
  /// Whether a table has a row for every position.
  bool tabled() const {
    return variant == DecoupledVariant::untied || variant == DecoupledVariant::diet_abs;
  }
  void complete(const spec::Scope& scope) override {
    if (rank != 0) return;
    if (variant == DecoupledVariant::diet_abs) rank = scope.width;
    if (variant == DecoupledVariant::decoupled_rope)
      rank = std::max<int64_t>(2, scope.turned() / 4 * 2);
  }
  bool by_distance() const override { return variant == DecoupledVariant::diet_rel; }
  bool takes_scale() const override { return variant == DecoupledVariant::disentangled; }
  void check(const spec::Scope& scope) const override;
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
  int64_t max_positions() const override { return tabled() ? n_positions : 0; }
  /// The scheme that untied ("tupe"), disentangled ("deberta") and decoupled_rope ("rope") are;
  /// none for the others.
  spec::AnyPart alias(const spec::Scope& scope) const;
};

}  // namespace tessera::nn
