#include "tessera/nn/mixer/attention/qk_norm.h"

#include <fmt/format.h>

namespace tessera::nn {

void QkNormConfig::check_qk_norm(const spec::Scope& scope, const spec::AnyPart& position) const {
  if (qk_norm_over != QkNormOver::head && !qk_norm)
    fail(ErrorKind::spec, scope.path,
         "qk_norm_over {} without a qk_norm; set qk_norm, or leave it out",
         spec::enum_name(qk_norm_over));
  if (!norms_after_rotation()) return;
  if (!qk_norm)
    fail(ErrorKind::spec, scope.path,
         "qk_norm_at after_rotation without a qk_norm; set qk_norm, or leave it out");
  if (!position || position.info().place != spec::Place::rotation)
    fail(ErrorKind::spec, scope.path,
         "qk_norm_at after_rotation, and position \"{}\" rotates nothing; use a rotation, or leave "
         "it out",
         position ? position.type() : "none");
}

void QkNormConfig::declare_qk_norm(spec::ParamList& list,
                                   const std::string& name,
                                   int64_t heads,
                                   int64_t head_dim,
                                   const spec::Scope& scope) const {
  declare_head_norms(list, name, qk_norm, qk_norm_over, heads, head_dim, scope);
}

void declare_head_norms(spec::ParamList& list,
                        const std::string& name,
                        const spec::AnyPart& norm,
                        QkNormOver over,
                        int64_t heads,
                        int64_t head_dim,
                        spec::Scope scope) {
  if (!norm) return;
  scope.width = over == QkNormOver::projection ? heads * head_dim : head_dim;
  if (over != QkNormOver::each_head) return norm.config->params_under(list, name, scope);
  for (int64_t h = 0; h < heads; ++h)
    norm.config->params_under(list, fmt::format("{}.{}", name, h), scope);
}

}  // namespace tessera::nn
