#include "tessera/nn/position/xl.h"

namespace tessera::nn {

void XlConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  list.linear("relative", scope.n_heads * scope.width, scope.d_model, false);
  declare(list, share, [&](spec::ParamList& to) {
    for (const char* name : {"u", "w"})
      to.add({name,
              {scope.n_heads, scope.width},
              spec::Init::table(),
              spec::ParamKind::structural,
              {spec::Role::head, spec::Role::none}});
  });
}

}  // namespace tessera::nn
