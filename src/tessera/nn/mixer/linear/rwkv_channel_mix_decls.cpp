#include "tessera/nn/mixer/linear/rwkv_channel_mix.h"

#include <algorithm>

#include "tessera/nn/mixer/linear/rwkv.h"

namespace tessera::nn {

void RwkvChannelMixConfig::complete(const spec::Scope& scope) {
  if (d_hidden != 0) return;
  const bool wide = version == RwkvVersion::rwkv4 || version == RwkvVersion::rwkv7;
  d_hidden = wide ? 4 * scope.d_model : std::max<int64_t>(32, scope.d_model * 7 / 2 / 32 * 32);
}

void RwkvChannelMixConfig::check(const spec::Scope& scope) const {
  if (!scope.causal)
    fail(
        ErrorKind::spec, scope.path,
        "rwkv_channel_mix reads the token before and cannot stand in an encoder; use an ffn there");
}

void RwkvChannelMixConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  list.linear("k", d_hidden, scope.d_model, false);
  list.linear("v", scope.d_model, d_hidden, false, spec::Init::into_stream(scope.n_layers));
  if (gated()) list.linear("r", scope.d_model, scope.d_model, false);
  mix_params(list, scope, gated() ? "kr" : "k");
}

std::vector<spec::StateDecl> RwkvChannelMixConfig::state(const spec::Scope& scope) const {
  return {{"last", spec::StateDecl::Kind::fixed, {scope.d_model}}};
}

}  // namespace tessera::nn
