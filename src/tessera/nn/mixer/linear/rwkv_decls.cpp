#include "tessera/nn/mixer/linear/rwkv.h"

namespace tessera::nn {

using Kind = spec::ParamKind;

void time_mix_params(spec::ParamList& list, const spec::Scope& scope, const RecurrentConfig& c) {
  list.linear("r", c.keys(), scope.d_model, false);
  list.linear("k", c.keys(), scope.d_model, false);
  list.linear("v", c.values(), scope.d_model, false, spec::Init::content());
  list.add({"norm.weight", {c.values()}, spec::Init::constant(1), Kind::norm});
  list.add({"norm.bias", {c.values()}, spec::Init::constant(0), Kind::bias});
  list.linear("o", scope.d_model, c.values(), false, spec::Init::into_stream(scope.n_layers));
}

void mix_params(spec::ParamList& list, const spec::Scope& scope, std::string_view names) {
  for (const char name : names)
    list.add(
        {std::string("mix_") + name, {scope.d_model}, spec::Init::uniform(0, 1), Kind::structural});
}

void low_rank_params(
    spec::ParamList& list, const std::string& name, int64_t out, int64_t rank, int64_t in) {
  list.linear(name + "_down", rank, in, false, spec::Init::constant(0));
  list.linear(name + "_up", out, rank, false, spec::Init::uniform(-0.01, 0.01));
}

std::vector<spec::StateDecl> time_mix_state(const RecurrentConfig& c, const spec::Scope& scope) {
  using Kind = spec::StateDecl::Kind;
  return {{"s", Kind::fixed, {c.n_heads, c.key_dim, c.value_dim}},
          {"last", Kind::fixed, {scope.d_model}}};
}

}  // namespace tessera::nn
