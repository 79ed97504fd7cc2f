// T5's bucketed relative bias: a learned number per head and class of distances; near ones have a
// class each, far ones share classes that widen logarithmically up to max_distance.
//   s_ij += b_h[bucket(j - i)]
// A causal model spends all buckets on the past, an encoder half of them on each side. In T5 all
// layers share one table ("share"), in UMT5 each has its own.
// Raffel et al. 2019, arXiv:1910.10683. Golden: positions 3.
#pragma once

#include "tessera/nn/position/position_config.h"

namespace tessera::nn {

struct T5Config final : PositionConfig {
  int64_t n_buckets = 32;
  int64_t max_distance = 128;
  std::string share;

  static constexpr auto fields() {
    using C = T5Config;
    return std::tuple{
        spec::field("n_buckets", &C::n_buckets, "rows of the table", {.min = 2}),
        spec::field("max_distance", &C::max_distance, "distances from here on share a bucket",
                    {.min = 2}),
        spec::field("share", &C::share, "layers with the same id share a table; \"\" = own")};
  }
  static spec::Info info() {
    return {.summary = "A learned bias per head and bucket of distances.",
            .paper =
                "Raffel et al.: Exploring the Limits of Transfer Learning with a Unified "
                "Text-to-Text Transformer, arXiv:1910.10683",
            .year = 2019,
            .forms = {.recurrent = true, .recorded = true},
            .place = spec::Place::score_bias};
  }
  bool by_distance() const override { return true; }
  void check(const spec::Scope& scope) const override;
  void params(spec::ParamList& list, const spec::Scope& scope) const override;

  /// The bucket of a key `distance` after the query (negative: before it).
  int64_t bucket(int64_t distance, bool causal) const;
};

}  // namespace tessera::nn
