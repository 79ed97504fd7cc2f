#include "tessera/nn/position/fire.h"

namespace tessera::nn {

void FireConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  list.add({"c", {1}, spec::Init::constant(c), spec::ParamKind::structural});
  list.add({"m", {1}, spec::Init::constant(1), spec::ParamKind::structural});
  list.linear("up", d_hidden, 1, true);
  list.linear("down", scope.n_heads, d_hidden, false);
}

}  // namespace tessera::nn
