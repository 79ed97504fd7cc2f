#include "tessera/nn/mixer/linear/hgrn2.h"

#include "tessera/nn/mixer/convolution/causal_conv_decl.h"

namespace tessera::nn {

using Kind = spec::ParamKind;

void Hgrn2Config::params(spec::ParamList& list, const spec::Scope& scope) const {
  list.linear("q", keys(), scope.d_model, false);
  list.linear("f", keys(), scope.d_model, false);
  list.linear("v", values(), scope.d_model, false, spec::Init::content());
  if (d_conv > 0)
    declare_conv(list, "conv", {2 * keys() + values(), d_conv}, conv_init(d_conv), nullptr);
  declare_lower_bounds(list, scope, lower_bound, kShared, keys());
  list.add({"norm.weight", {values()}, spec::Init::constant(1), Kind::norm});
  list.linear("o", scope.d_model, values(), false, spec::Init::into_stream(scope.n_layers));
}

std::vector<spec::StateDecl> Hgrn2Config::state(const spec::Scope&) const {
  using Kind = spec::StateDecl::Kind;
  std::vector<spec::StateDecl> out{{"s", Kind::fixed, {n_heads, key_dim, value_dim}}};
  if (d_conv > 0) out.push_back(conv_state(2 * keys() + values(), d_conv));
  return out;
}

}  // namespace tessera::nn
