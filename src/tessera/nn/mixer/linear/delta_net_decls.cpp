#include "tessera/nn/mixer/linear/delta_net.h"

#include "tessera/nn/mixer/linear/delta_rule.h"

namespace tessera::nn {

void DeltaNetConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  delta_params(list, scope, *this, n_heads, d_conv);
  if (gate) list.linear("g", values(), scope.d_model, false);
}

std::vector<spec::StateDecl> DeltaNetConfig::state(const spec::Scope&) const {
  return delta_state(*this, n_heads, d_conv);
}

double DeltaNetConfig::extra_flops(const spec::Scope&, int64_t) const {
  return delta_flops(*this, n_heads, d_conv);
}

}  // namespace tessera::nn
