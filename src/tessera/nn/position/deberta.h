// DeBERTa's disentangled attention: content with content, content with position and position
// with content, from one table of distances.
//   s_ij = [q_i . k_j + q_i . K_r + k_j . Q_r] / sqrt(D (1 + terms)),   r = clip(d + span, 0, 2
//   span
//   - 1),  d = i - j or its logarithmic bucket;   K = W_k N(table), Q = W_q N(table) + b_q
// Both terms read the row of i - j, as the released code does. A bias of K would shift whole rows,
// which softmax does not see, so there is none. With projections "mixer" K and Q come from the
// mixer's own keys and queries (share_att_key).
// Buckets: |d| <= mid = buckets / 2 keep their own, then logarithmically up to max_relative.
// He, Liu, Gao, Chen 2020, arXiv:2006.03654; He, Gao, Chen 2021, arXiv:2111.09543.
// Golden: positions 6.
#pragma once

#include "tessera/nn/position/position_config.h"

namespace tessera::nn {

enum class DebertaProjections { own, mixer };

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::DebertaProjections> {
  static constexpr std::array names{std::pair{nn::DebertaProjections::own, "own"},
                                    std::pair{nn::DebertaProjections::mixer, "mixer"}};
};

namespace tessera::nn {

struct DebertaConfig final : PositionConfig {
  int64_t max_relative = 0;
  int64_t buckets = 0;
  bool c2p = true;
  bool p2c = true;
  DebertaProjections projections = DebertaProjections::own;
  spec::Part<spec::Slot::norm> norm;
  std::string share;

  bool takes_scale() const override { return true; }
  static constexpr auto fields() {
    using C = DebertaConfig;
    using spec::field;
    return std::tuple{
        field("max_relative", &C::max_relative, "farther distances count as this one",
              {.min = 1, .required = true}),
        field("buckets", &C::buckets, "logarithmic buckets, even; 0 = every distance its own row",
              {.min = 0}),
        field("c2p", &C::c2p, "the term of the query and the position of the key"),
        field("p2c", &C::p2c, "the term of the key and the position of the query"),
        field("projections", &C::projections, "what makes keys and queries of the table"),
        field("norm", &C::norm, "norm of the table"),
        field("share", &C::share, "layers with the same id share table and norm; \"\" = own")};
  }
  static spec::Json example(const spec::Scope&, int64_t) { return {{"max_relative", 128}}; }
  static spec::Info info() {
    return {.summary = "Queries and keys are also compared with projected vectors of the distance.",
            .paper =
                "He et al.: DeBERTa: Decoding-enhanced BERT with Disentangled Attention, "
                "arXiv:2006.03654",
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

  int64_t span() const { return buckets > 0 ? buckets : max_relative; }
  /// The row of the table for query - key = `distance`.
  int64_t row(int64_t distance) const;
};

}  // namespace tessera::nn
