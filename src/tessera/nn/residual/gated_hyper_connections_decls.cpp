#include "tessera/nn/residual/gated_hyper_connections.h"

#include "tessera/nn/norm/stream_norm_decl.h"

namespace tessera::nn {
namespace {

void declare_reading(spec::ParamList& list,
                     const GatedHyperConnectionsConfig& config,
                     const spec::Scope& scope) {
  const int64_t all = config.streams * scope.d_model;
  declare_stream_norm(list, "norm", config.streams, scope.d_model, config.norm_weight);
  list.linear("down", config.rank, all, false);
  list.linear("up", all, config.rank, false);
}

}  // namespace

void GatedHyperConnectionsConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  ResidualConfig::params(list, scope);
  if (reads == StreamsRead::all) return;
  declare_reading(list, *this, scope);
  list.linear("inject", streams, streams * scope.d_model, false);
}

void GatedHyperConnectionsConfig::leave_params(spec::ParamList& list,
                                               const spec::Scope& scope) const {
  declare_reading(list, *this, scope);
}

}  // namespace tessera::nn
