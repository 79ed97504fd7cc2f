#include "tessera/nn/mixer/linear/kda.h"

#include "tessera/nn/mixer/linear/delta_rule.h"

namespace tessera::nn {

void KdaConfig::check(const spec::Scope& scope) const {
  require_causal(scope, "kda");
  if (full_rank && rank != 0)
    fail(ErrorKind::spec, scope.path,
         "rank = {} with full_rank, whose projections have none; leave one of them out", rank);
}

void KdaConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  delta_params(list, scope, *this, n_heads, d_conv);
  const auto project = [&](const std::string& name, int64_t rows, bool bias) {
    if (full_rank) return list.linear(name, rows, scope.d_model, bias);
    list.linear(name + "_down", rank, scope.d_model, false);
    list.linear(name + "_up", rows, rank, bias);
  };
  project("decay", keys(), false);
  step_params(list, n_heads, keys());
  project("g", values(), gate_bias);
}

std::vector<spec::StateDecl> KdaConfig::state(const spec::Scope&) const {
  return delta_state(*this, n_heads, d_conv);
}

double KdaConfig::extra_flops(const spec::Scope&, int64_t) const {
  return delta_flops(*this, n_heads, d_conv);
}

}  // namespace tessera::nn
