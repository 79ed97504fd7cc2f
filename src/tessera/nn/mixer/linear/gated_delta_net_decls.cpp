#include "tessera/nn/mixer/linear/gated_delta_net.h"

#include "tessera/nn/mixer/linear/delta_rule.h"

namespace tessera::nn {

void GatedDeltaNetConfig::check(const spec::Scope& scope) const {
  require_causal(scope, "gated_delta_net");
  if (n_heads % n_key_heads != 0)
    fail(ErrorKind::spec, scope.path, "n_key_heads = {} does not divide n_heads = {}", n_key_heads,
         n_heads);
  if (!gate && gate_act != DeltaGate::silu)
    fail(ErrorKind::spec, scope.path, "gate_act without a gate; set gate, or leave it out");
}

void GatedDeltaNetConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  delta_params(list, scope, *this, n_key_heads, d_conv);
  list.linear("decay", n_heads, scope.d_model, false);
  step_params(list, n_heads, n_heads);
  if (gate) list.linear("g", values(), scope.d_model, false);
}

std::vector<spec::StateDecl> GatedDeltaNetConfig::state(const spec::Scope&) const {
  return delta_state(*this, n_key_heads, d_conv);
}

double GatedDeltaNetConfig::extra_flops(const spec::Scope&, int64_t) const {
  return delta_flops(*this, n_key_heads, d_conv);
}

}  // namespace tessera::nn
