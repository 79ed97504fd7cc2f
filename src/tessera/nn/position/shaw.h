// Shaw's relative positions: learned vectors per clipped distance, added to the keys and, if
// wanted, to the values.
//   s_ij = scale (q_i . (k_j + a_r) [+ k_j . a_r]);   o_i = sum_j p_ij (v_j [+ c_r])
//   r = clip(j - i, -left, right) + left;  with sign query_minus_key r = clip(i - j, -right, left)
//   + right: the same rows in reverse
// BERT's relative_key is sign query_minus_key with left = right = max_position - 1, its
// relative_key_query has the terms of query and key; wav2vec2-BERT is left 64, right 8.
// Shaw, Uszkoreit, Vaswani 2018, arXiv:1803.02155; Huang et al. 2020, arXiv:2009.13658.
// Golden: positions 4.
#pragma once

#include "tessera/nn/position/position_config.h"

namespace tessera::nn {

enum class RelativeSign { key_minus_query, query_minus_key };
enum class ShawTerms { query, query_and_key };

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::RelativeSign> {
  static constexpr std::array names{
      std::pair{nn::RelativeSign::key_minus_query, "key_minus_query"},
      std::pair{nn::RelativeSign::query_minus_key, "query_minus_key"}};
};
template <>
struct tessera::spec::EnumNames<tessera::nn::ShawTerms> {
  static constexpr std::array names{std::pair{nn::ShawTerms::query, "query"},
                                    std::pair{nn::ShawTerms::query_and_key, "query_and_key"}};
};

namespace tessera::nn {

struct ShawConfig final : PositionConfig {
  int64_t left = 0;
  std::optional<int64_t> right;
  RelativeSign sign = RelativeSign::key_minus_query;
  ShawTerms terms = ShawTerms::query;
  bool values = false;

  bool adds_values() const override { return values; }
  bool takes_scale() const override { return true; }
  static constexpr auto fields() {
    using C = ShawConfig;
    return std::tuple{
        spec::field("left", &C::left, "farthest distance to a key before the query",
                    {.min = 0, .required = true}),
        spec::field("right", &C::right, "farthest distance to a key after it; null = left",
                    {.min = 0}),
        spec::field("sign", &C::sign, "which distance numbers the rows of the tables"),
        spec::field("terms", &C::terms, "what the vectors are multiplied with"),
        spec::field("values", &C::values, "whether values gain a vector, too")};
  }
  static spec::Json example(const spec::Scope&, int64_t) { return {{"left", 128}}; }
  static spec::Info info() {
    return {.summary = "Learned vectors per clipped distance, added to keys and values.",
            .paper =
                "Shaw, Uszkoreit, Vaswani: Self-Attention with Relative Position Representations, "
                "arXiv:1803.02155",
            .year = 2018,
            .forms = {.recurrent = true},
            .place = spec::Place::score_bias};
  }
  void complete(const spec::Scope&) override {
    if (!right) right = left;
  }
  void check(const spec::Scope& scope) const override { require_scores("shaw", scope); }
  void check_one_sided(const spec::Scope& scope) const override {
    // a resolved spec has right = left
    if (right.value_or(0) != 0 && right != left)
      fail(
          ErrorKind::spec, scope.path,
          "shaw with right = {} needs an encoder: in a decoder no key is after its query; leave it "
          "out, or give 0",
          *right);
  }
  void params(spec::ParamList& list, const spec::Scope& scope) const override;

  /// The row of a key `distance` after the query.
  int64_t row(int64_t distance) const {
    return sign == RelativeSign::key_minus_query
               ? std::clamp(distance, -left, right.value_or(left)) + left
               : std::clamp(-distance, -right.value_or(left), left) + right.value_or(left);
  }
};

}  // namespace tessera::nn
