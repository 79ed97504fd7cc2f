#include "tessera/nn/mixer/convolution/short_conv.h"

#include "tessera/nn/mixer/causal.h"
#include "tessera/nn/mixer/convolution/causal_conv_decl.h"

namespace tessera::nn {

void ShortConvConfig::check(const spec::Scope& scope) const {
  require_causal(scope, "short_conv");
}

void ShortConvConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  list.linear("in", 3 * scope.d_model, scope.d_model, bias);
  const spec::Init conv = conv_init(d_conv);
  declare_conv(list, "conv", {scope.d_model, d_conv}, conv, bias ? &conv : nullptr);
  list.linear("out", scope.d_model, scope.d_model, bias, spec::Init::into_stream(scope.n_layers));
}

std::vector<spec::StateDecl> ShortConvConfig::state(const spec::Scope& scope) const {
  return {conv_state(scope.d_model, d_conv)};
}

double ShortConvConfig::extra_flops(const spec::Scope& scope, int64_t) const {
  return static_cast<double>(scope.d_model) * (2.0 + 2.0 * static_cast<double>(d_conv));
}

}  // namespace tessera::nn
