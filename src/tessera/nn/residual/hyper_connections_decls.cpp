#include "tessera/nn/residual/hyper_connections.h"

namespace tessera::nn {

void HyperConnectionsConfig::complete(const spec::Scope& scope) {
  if (dynamic && !norm) {
    spec::Scope own = scope;
    own.width = scope.d_model;
    static_cast<spec::AnyPart&>(norm) =
        spec::default_part(spec::Slot::norm, "rms_norm", own.at("norm"));
  }
}

void HyperConnectionsConfig::check(const spec::Scope& scope) const {
  ResidualConfig::check(scope);
  if (!dynamic && norm)
    fail(ErrorKind::spec, scope.path + ".norm",
         "found \"{}\" with \"dynamic\": false, which normalises nothing; leave it out",
         norm.type());
}

void HyperConnectionsConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  ResidualConfig::params(list, scope);
  // the branch reads one stream, another one each time, and every stream stays as it is
  std::vector<double> alpha;
  for (int64_t s = 0; s < streams; ++s) {
    alpha.push_back(s == scope.earlier % streams ? 1 : 0);
    for (int64_t t = 0; t < streams; ++t) alpha.push_back(s == t ? 1 : 0);
  }
  using spec::ParamKind;
  list.add({.name = "alpha",
            .shape = {streams, streams + 1},
            .init = spec::Init::repeat(std::move(alpha)),
            .kind = ParamKind::structural});
  list.add({.name = "beta",
            .shape = {streams},
            .init = spec::Init::constant(1),
            .kind = ParamKind::structural});
  if (!dynamic) return;
  spec::Scope own = scope;
  own.width = scope.d_model;
  norm.config->params_under(list, "norm", own);
  list.linear("alpha_of", streams + 1, scope.d_model, false, spec::Init::constant(0));
  list.linear("beta_of", 1, scope.d_model, false, spec::Init::constant(0));
  for (const char* name : {"alpha_scale", "beta_scale"})
    list.add({.name = name,
              .shape = {1},
              .init = spec::Init::constant(0.01),
              .kind = ParamKind::structural});
}

}  // namespace tessera::nn
