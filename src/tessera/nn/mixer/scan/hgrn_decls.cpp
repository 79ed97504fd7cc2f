#include "tessera/nn/mixer/scan/hgrn.h"

#include "tessera/nn/mixer/convolution/causal_conv_decl.h"
#include "tessera/nn/mixer/causal.h"

namespace tessera::nn {

using Kind = spec::ParamKind;

void HgrnConfig::check(const spec::Scope& scope) const {
  require_causal(scope, "hgrn", "attention or linear_attention");
}

void HgrnConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  list.linear("i", width, scope.d_model, false);
  list.linear("f", width, scope.d_model, false);
  if (d_conv > 0) declare_conv(list, "conv", {2 * width, d_conv}, conv_init(d_conv), nullptr);
  declare_lower_bounds(list, scope, lower_bound, kShared, width);
  list.linear("g", width, scope.d_model, false);
  list.add({"norm.weight", {width}, spec::Init::constant(1), Kind::norm});
  list.linear("o", scope.d_model, width, false, spec::Init::into_stream(scope.n_layers));
}

std::vector<spec::StateDecl> HgrnConfig::state(const spec::Scope&) const {
  std::vector<spec::StateDecl> out{{"h", spec::StateDecl::Kind::fixed, {width}}};
  if (d_conv > 0) out.push_back(conv_state(2 * width, d_conv));
  return out;
}

double HgrnConfig::extra_flops(const spec::Scope&, int64_t) const {
  return static_cast<double>(width) * (8.0 + 4.0 * static_cast<double>(d_conv));
}

}  // namespace tessera::nn
