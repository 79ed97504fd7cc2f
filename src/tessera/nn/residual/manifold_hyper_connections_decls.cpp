#include "tessera/nn/residual/manifold_hyper_connections.h"

namespace tessera::nn {
namespace {

void declare_mixing(spec::ParamList& list, int64_t made, int64_t read, int64_t scales) {
  list.linear("fn", made, read, false);
  list.add({.name = "base",
            .shape = {made},
            .init = spec::Init::constant(0),
            .kind = spec::ParamKind::structural});
  list.add({.name = "scale",
            .shape = {scales},
            .init = spec::Init::constant(1),
            .kind = spec::ParamKind::structural});
}

}  // namespace

void ManifoldHyperConnectionsConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  ResidualConfig::params(list, scope);
  declare_mixing(list, (mix ? 2 + streams : 2) * streams, streams * scope.d_model, mix ? 3 : 2);
}

void ManifoldHyperConnectionsConfig::leave_params(spec::ParamList& list,
                                                  const spec::Scope& scope) const {
  declare_mixing(list, streams, streams * scope.d_model, 1);
}

}  // namespace tessera::nn
