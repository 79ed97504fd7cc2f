// The factor on the scores of softmax attention, s_ij = scale q_i . k_j: a number that follows from
// the width of a head, a given one, or learned ones, which multiply the queries (score_scaling.h).
#pragma once

#include "tessera/spec/fields.h"

namespace tessera::nn {

enum class ScoreScale {
  rsqrt_head_dim,  // head_dim^-1/2
  one,             // T5, GPT-Neo
  value,           // scale_value itself
  rsqrt_of,        // scale_value^-1/2 (Gemma 2 and 3)
  inverse_layer,   // head_dim^-1/2 / (layer + 1) (GPT-2 option)
  learned,         // one learned number, scale_value at first; after qk_norm l2_norm it is the g of
                   // cosine attention, s_ij = g cos(q_i, k_j)
  learned_headwise,  // one per query head
};
enum class ScaleOn {
  logits,  // scale (q_i . k_j)
  query,   // (scale q_i) . k_j: the same but for rounding (Longformer, BART, Whisper)
};

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::ScoreScale> {
  using S = nn::ScoreScale;
  static constexpr std::array names{std::pair{S::rsqrt_head_dim, "rsqrt_head_dim"},
                                    std::pair{S::one, "one"},
                                    std::pair{S::value, "value"},
                                    std::pair{S::rsqrt_of, "rsqrt_of"},
                                    std::pair{S::inverse_layer, "inverse_layer"},
                                    std::pair{S::learned, "learned"},
                                    std::pair{S::learned_headwise, "learned_headwise"}};
};
template <>
struct tessera::spec::EnumNames<tessera::nn::ScaleOn> {
  static constexpr std::array names{std::pair{nn::ScaleOn::logits, "logits"},
                                    std::pair{nn::ScaleOn::query, "query"}};
};

namespace tessera::nn {

struct ScoreScaleConfig {
  ScoreScale scale = ScoreScale::rsqrt_head_dim;
  double scale_value = 1;
  ScaleOn scale_on = ScaleOn::logits;

  static constexpr auto fields() {
    using C = ScoreScaleConfig;
    using spec::field;
    return std::tuple{
        field("scale", &C::scale, "factor on the scores"),
        field("scale_value", &C::scale_value,
              "the number that `value` and `rsqrt_of` take, and where a learned factor begins")};
  }
  /// Of mixers that may also multiply the queries by the factor.
  static constexpr auto fields_with_site() {
    return std::tuple_cat(fields(), std::tuple{spec::field("scale_on", &ScoreScaleConfig::scale_on,
                                                           "what the factor multiplies")});
  }
  bool learns_scale() const {
    return scale == ScoreScale::learned || scale == ScoreScale::learned_headwise;
  }
  /// The factor in layer `layer` (from 0); 1 where it is learned.
  double score_scale(int64_t head_dim, int64_t layer) const;
  /// Throws Error(spec) where scale_value or scale_on is given and the scale takes none, or
  /// `position` reads a factor that is on the queries.
  void check_scale(const spec::Scope& scope, const spec::AnyPart& position = {}) const;
  /// Where it is learned, declares it as "scale".
  void declare_scale(spec::ParamList& list, int64_t n_heads) const;
};

}  // namespace tessera::nn
