// Norms of the queries and keys of attention (QK norm), before or after the rotation.
// Henry et al. 2020, arXiv:2010.04245; Dehghani et al. 2023, arXiv:2302.05442, 2.
#pragma once

#include <string>

#include "tessera/spec/fields.h"

namespace tessera::nn {

enum class QkNormOver {
  head,        // statistics per head, one weight [head_dim] shared by heads (Qwen3, Gemma 3)
  projection,  // statistics over the whole projection (OLMo 2)
  each_head,   // statistics per head, a norm with parameters of its own for every head (StableLM)
};
enum class QkNormAt {
  before_rotation,  // of the projections (Qwen3)
  after_rotation,   // of what the position has turned, so that a weight meets fixed channels
                    // (HunYuan)
};

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::QkNormOver> {
  static constexpr std::array names{std::pair{nn::QkNormOver::head, "head"},
                                    std::pair{nn::QkNormOver::projection, "projection"},
                                    std::pair{nn::QkNormOver::each_head, "each_head"}};
};
template <>
struct tessera::spec::EnumNames<tessera::nn::QkNormAt> {
  static constexpr std::array names{std::pair{nn::QkNormAt::before_rotation, "before_rotation"},
                                    std::pair{nn::QkNormAt::after_rotation, "after_rotation"}};
};

namespace tessera::nn {

struct QkNormConfig {
  spec::Part<spec::Slot::norm> qk_norm;
  QkNormOver qk_norm_over = QkNormOver::head;
  QkNormAt qk_norm_at = QkNormAt::before_rotation;

  static constexpr auto fields() {
    using C = QkNormConfig;
    using spec::field;
    return std::tuple{
        field("qk_norm", &C::qk_norm, "norm of queries and keys"),
        field("qk_norm_over", &C::qk_norm_over, "what the qk_norm's statistics cover")};
  }
  /// Of mixers that may also norm after the rotation.
  static constexpr auto fields_with_place() {
    return std::tuple_cat(
        fields(), std::tuple{spec::field("qk_norm_at", &QkNormConfig::qk_norm_at,
                                         "whether the qk_norm is before or after the rotation")});
  }
  bool norms_after_rotation() const { return qk_norm_at == QkNormAt::after_rotation; }
  /// Throws Error(spec) where qk_norm_over or qk_norm_at is given without a norm, or `position`
  /// rotates nothing that a norm could follow.
  void check_qk_norm(const spec::Scope& scope, const spec::AnyPart& position = {}) const;
  /// The norm of `heads` heads of queries ("q_norm") or keys ("k_norm").
  void declare_qk_norm(spec::ParamList& list,
                       const std::string& name,
                       int64_t heads,
                       int64_t head_dim,
                       const spec::Scope& scope) const;
};

/// Norms by heads, under `name`: one for all, or `name`.<head> for each. head_norms.h applies them.
void declare_head_norms(spec::ParamList& list,
                        const std::string& name,
                        const spec::AnyPart& norm,
                        QkNormOver over,
                        int64_t heads,
                        int64_t head_dim,
                        spec::Scope scope);

}  // namespace tessera::nn
