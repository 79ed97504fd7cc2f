#include "tessera/nn/mixer/linear/kda.h"

#include "tessera/nn/mixer/linear/delta_rule.h"

namespace tessera::nn {

void KdaConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  delta_params(list, scope, *this, n_heads, d_conv);
  list.linear("decay_down", rank, scope.d_model, false);
  list.linear("decay_up", keys(), rank, false);
  step_params(list, n_heads, keys());
  list.linear("g_down", rank, scope.d_model, false);
  list.linear("g_up", values(), rank, gate_bias);
}

std::vector<spec::StateDecl> KdaConfig::state(const spec::Scope&) const {
  return delta_state(*this, n_heads, d_conv);
}

double KdaConfig::extra_flops(const spec::Scope&, int64_t) const {
  return delta_flops(*this, n_heads, d_conv);
}

}  // namespace tessera::nn
