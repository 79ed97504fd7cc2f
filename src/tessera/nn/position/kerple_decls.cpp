#include "tessera/nn/position/kerple.h"

namespace tessera::nn {

void KerpleConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  const auto add = [&](const char* name, double high) {
    list.add({name,
              {scope.n_heads},
              spec::Init::uniform(0, high),
              spec::ParamKind::structural,
              {spec::Role::head}});
  };
  const bool log = kernel == KerpleKernel::log;
  add(log ? "r1" : "a", log ? 2 : 1);
  add(log ? "r2" : "p", log ? 1 : kGreatestPower);
}

}  // namespace tessera::nn
