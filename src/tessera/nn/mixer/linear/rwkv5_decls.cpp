#include "tessera/nn/mixer/linear/rwkv5.h"

#include "tessera/nn/mixer/linear/rwkv.h"

namespace tessera::nn {

using Kind = spec::ParamKind;

void Rwkv5Config::params(spec::ParamList& list, const spec::Scope& scope) const {
  time_mix_params(list, scope, *this);
  if (gate) list.linear("g", values(), scope.d_model, false);
  mix_params(list, scope, gate ? "rkvg" : "rkv");
  list.add({"decay",
            {n_heads, key_dim},
            spec::Init::uniform(-6, -1),
            Kind::structural,
            {spec::Role::head, spec::Role::none}});
  list.add({"bonus",
            {n_heads, key_dim},
            spec::Init::uniform(-0.1, 1),
            Kind::structural,
            {spec::Role::head, spec::Role::none}});
}

std::vector<spec::StateDecl> Rwkv5Config::state(const spec::Scope& scope) const {
  return time_mix_state(*this, scope);
}

}  // namespace tessera::nn
