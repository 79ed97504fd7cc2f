#include "tessera/nn/mixer/linear/gla.h"

namespace tessera::nn {

using Kind = spec::ParamKind;

void GlaConfig::complete(const spec::Scope& scope) {
  if (key_dim == 0) {
    if (head_width(scope) % 2 != 0)
      fail(ErrorKind::spec, scope.path,
           "d_model / n_heads = {} is odd and key_dim is half of it; give key_dim",
           head_width(scope));
    key_dim = head_width(scope) / 2;
  }
  if (value_dim == 0) value_dim = head_width(scope);
}

void GlaConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  list.linear("q", keys(), scope.d_model, false);
  list.linear("k", keys(), scope.d_model, false);
  list.linear("v", values(), scope.d_model, false, spec::Init::content());
  list.linear("g", values(), scope.d_model, false);
  list.linear("decay_down", decay_rank, scope.d_model, false);
  list.linear("decay_up", keys(), decay_rank, true);
  list.add({"norm.weight", {value_dim}, spec::Init::constant(1), Kind::norm});
  list.linear("o", scope.d_model, values(), false, spec::Init::into_stream(scope.n_layers));
}

}  // namespace tessera::nn
