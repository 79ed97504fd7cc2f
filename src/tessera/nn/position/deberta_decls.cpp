#include "tessera/nn/position/deberta.h"

#include <algorithm>
#include <cmath>

namespace tessera::nn {

void DebertaConfig::check(const spec::Scope& scope) const {
  require_scores("deberta", scope);
  check_share(share, scope);
  if (!c2p && !p2c)
    fail(ErrorKind::spec, scope.path, "c2p and p2c are both off; use position \"none\"");
  if (buckets % 2 != 0)
    fail(ErrorKind::spec, scope.path, "buckets = {}; expected an even number", buckets);
  if (buckets > 0 && max_relative - 1 <= buckets / 2)
    fail(ErrorKind::spec, scope.path,
         "max_relative = {} lies within the {} distances that have their own bucket; expected more",
         max_relative, buckets / 2 + 1);
}

void DebertaConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  declare(list, share, [&](spec::ParamList& to) {
    to.add({"weight",
            {2 * span(), scope.d_model},
            spec::Init::table(),
            spec::ParamKind::embedding,
            {spec::Role::position, spec::Role::in}});
    if (norm) norm.config->params_under(to, "norm", child_scope(scope, "norm"));
  });
  if (projections == DebertaProjections::mixer) return;
  if (c2p) list.linear("key", scope.n_heads * scope.width, scope.d_model, false);
  if (p2c) list.linear("query", scope.n_heads * scope.width, scope.d_model, true);
}

int64_t DebertaConfig::row(int64_t distance) const {
  int64_t place = distance;
  const int64_t mid = buckets / 2, far = std::abs(distance);
  if (buckets > 0 && far > mid) {
    // in float32, as checkpoints were trained with
    const auto m = static_cast<float>(mid);
    const float part = std::log(static_cast<float>(far) / m) /
                       static_cast<float>(std::log(static_cast<double>(max_relative - 1) / m));
    const int64_t bucket =
        mid + static_cast<int64_t>(std::ceil(part * static_cast<float>(mid - 1)));
    place = distance < 0 ? -bucket : bucket;
  }
  return std::clamp<int64_t>(place + span(), 0, 2 * span() - 1);
}

}  // namespace tessera::nn
