#include "tessera/nn/mixer/linear/rwkv6.h"

#include "tessera/nn/mixer/linear/rwkv.h"

namespace tessera::nn {

using Kind = spec::ParamKind;

void Rwkv6Config::params(spec::ParamList& list, const spec::Scope& scope) const {
  time_mix_params(list, scope, *this);
  list.linear("g", values(), scope.d_model, false);
  mix_params(list, scope, "xwkvrg");
  list.linear("mix_down", 5 * mix_rank, scope.d_model, false, spec::Init::constant(0));
  for (const char name : std::string_view("wkvrg"))
    list.linear(std::string("mix_up_") + name, scope.d_model, mix_rank, false,
                spec::Init::uniform(-0.01, 0.01));
  low_rank_params(list, "decay", keys(), decay_rank, scope.d_model);
  list.add({"decay_up.bias", {keys()}, spec::Init::uniform(-6, -1), Kind::structural});
  list.add({"bonus",
            {n_heads, key_dim},
            spec::Init::uniform(-0.1, 1),
            Kind::structural,
            {spec::Role::head, spec::Role::none}});
}

std::vector<spec::StateDecl> Rwkv6Config::state(const spec::Scope& scope) const {
  return time_mix_state(*this, scope);
}

}  // namespace tessera::nn
