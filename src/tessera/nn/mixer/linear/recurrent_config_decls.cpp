#include "tessera/nn/mixer/linear/recurrent_config.h"

#include "tessera/nn/mixer/causal.h"

namespace tessera::nn {

std::vector<spec::StateDecl> RecurrentConfig::state(const spec::Scope&) const {
  return {{"s", spec::StateDecl::Kind::fixed, {n_heads, key_dim, value_dim}}};
}

double RecurrentConfig::extra_flops(const spec::Scope&, int64_t) const {
  return 5.0 * static_cast<double>(n_heads * key_dim * value_dim);  // decay, write, read
}

int64_t RecurrentConfig::head_width(const spec::Scope& scope) const {
  if (scope.d_model % n_heads != 0)
    fail(
        ErrorKind::spec, scope.path,
        "n_heads = {} does not divide d_model = {}; give key_dim and value_dim, or another n_heads",
        n_heads, scope.d_model);
  return scope.d_model / n_heads;
}

void RecurrentConfig::require_causal(const spec::Scope& scope, std::string_view name) {
  nn::require_causal(scope, name, "attention or linear_attention");
}

}  // namespace tessera::nn
