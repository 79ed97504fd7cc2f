#include <cmath>

#include "tessera/nn/mixer/convolution/convolution.h"
#include "tessera/nn/mixer/convolution/grouped_conv_decl.h"

namespace tessera::nn {

void ConvolutionConfig::check(const spec::Scope& scope) const {
  if (scope.d_model % groups != 0)
    fail(ErrorKind::spec, scope.path, "groups = {} does not divide d_model = {}", groups,
         scope.d_model);
}

void ConvolutionConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  // framework default: uniform within 1 / sqrt(fan-in)
  const double bound =
      1 / std::sqrt(static_cast<double>(scope.d_model / groups) * static_cast<double>(kernel));
  const spec::Init init = spec::Init::uniform(-bound, bound);
  declare_grouped_conv(list, {scope.d_model, groups, kernel}, init, bias ? &init : nullptr);
}

std::vector<spec::StateDecl> ConvolutionConfig::state(const spec::Scope& scope) const {
  return grouped_conv_state(scope, scope.d_model, kernel);
}

}  // namespace tessera::nn
