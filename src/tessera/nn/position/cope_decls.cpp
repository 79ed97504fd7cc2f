#include "tessera/nn/position/cope.h"

namespace tessera::nn {

void CopeConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  std::vector<int64_t> shape{n_positions, scope.width};
  if (per_head) shape.insert(shape.begin(), scope.n_heads);
  std::vector<spec::Role> roles{spec::Role::position, spec::Role::none};
  if (per_head) roles.insert(roles.begin(), spec::Role::head);
  list.add({"weight", shape, spec::Init::constant(0), spec::ParamKind::embedding, roles});
}

}  // namespace tessera::nn
