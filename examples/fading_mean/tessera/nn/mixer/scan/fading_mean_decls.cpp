#include "tessera/nn/mixer/scan/fading_mean.h"

#include "tessera/nn/mixer/causal.h"

namespace tessera::nn {

void FadingMeanConfig::check(const spec::Scope& scope) const {
  require_causal(scope, "fading_mean");
}

void FadingMeanConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  list.linear("i", width, scope.d_model, false);
  list.linear("g", width, scope.d_model, false);
  // a = sigmoid(lambda): from 0.5, the last two tokens, to 0.998, the last 500
  list.add({"lambda", {width}, spec::Init::uniform(0, 6), spec::ParamKind::structural});
  list.linear("o", scope.d_model, width, false, spec::Init::into_stream(scope.n_layers));
}

std::vector<spec::StateDecl> FadingMeanConfig::state(const spec::Scope&) const {
  return {{"h", spec::StateDecl::Kind::fixed, {width}}};
}

double FadingMeanConfig::extra_flops(const spec::Scope&, int64_t) const {
  return 6.0 * static_cast<double>(width);
}

}  // namespace tessera::nn
