#include <cmath>

#include "tessera/nn/mixer/transform/gmlp.h"

namespace tessera::nn {

void GmlpConfig::check(const spec::Scope& scope) const {
  if (d_hidden % 2 != 0)
    fail(ErrorKind::spec, scope.path, "d_hidden = {}; expected an even number: u and v", d_hidden);
}

void GmlpConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  list.linear("in", d_hidden, scope.d_model, true);
  if (norm) {
    spec::Scope norm_scope = scope;
    norm_scope.width = d_hidden / 2;
    spec::ParamList child = list.under("norm");
    norm.config->params(child, norm_scope);
    list.append(child);
  }
  const double bound = 1e-3 / static_cast<double>(max_length);
  list.linear("tokens", max_length, max_length, false, spec::Init::uniform(-bound, bound));
  list.add({"tokens.bias", {max_length}, spec::Init::constant(1), spec::ParamKind::bias});
  list.linear("out", scope.d_model, d_hidden / 2, true, spec::Init::into_stream(scope.n_layers));
}

std::vector<spec::StateDecl> GmlpConfig::state(const spec::Scope&) const {
  return {{"v", spec::StateDecl::Kind::per_token, {d_hidden / 2}}};
}

double GmlpConfig::extra_flops(const spec::Scope&, int64_t context) const {
  return static_cast<double>(d_hidden) * static_cast<double>(std::min(context, max_length));
}

}  // namespace tessera::nn
