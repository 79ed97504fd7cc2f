#include "tessera/nn/position/tupe.h"

namespace tessera::nn {

void TupeConfig::check(const spec::Scope& scope) const {
  require_scores("tupe", scope);
  check_share(share, scope);
  if (buckets % 2 != 0 || buckets == 2)
    fail(ErrorKind::spec, scope.path,
         "buckets = {}; expected an even number of at least 4, or 0 for none", buckets);
  if (buckets > 0 && max_distance <= buckets / 4)
    fail(ErrorKind::spec, scope.path,
         "max_distance = {} lies within the {} distances that have their own bucket; expected more",
         max_distance, buckets / 4);
  if (buckets == 0 && max_distance != TupeConfig().max_distance)
    fail(ErrorKind::spec, scope.path,
         "max_distance = {} without buckets; set buckets, or leave it out", max_distance);
}

void TupeConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  declare(list, share, [&](spec::ParamList& to) {
    to.add({"weight",
            {n_positions + (untie_cls ? 1 : 0), scope.d_model},
            spec::Init::table(),
            spec::ParamKind::embedding,
            {spec::Role::position, spec::Role::in}});
    if (norm) norm.config->params_under(to, "norm", child_scope(scope, "norm"));
    to.linear("q", scope.n_heads * scope.width, scope.d_model, true);
    to.linear("k", scope.n_heads * scope.width, scope.d_model, untie_cls);
    if (buckets > 0)
      to.add({"relative.weight",
              {buckets + (untie_cls ? 1 : 0), scope.n_heads},
              spec::Init::table(),
              spec::ParamKind::embedding,
              {spec::Role::position, spec::Role::head}});
  });
}

}  // namespace tessera::nn
