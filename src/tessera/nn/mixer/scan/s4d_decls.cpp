#include "tessera/nn/mixer/scan/s4d.h"

#include <cmath>

#include "tessera/nn/mixer/scan/hippo.h"
#include "tessera/nn/mixer/scan/lti_system.h"

namespace tessera::nn {

void S4dConfig::check(const spec::Scope& scope) const {
  check_lti(scope, "s4d", d_state, dt_min, dt_max);
}

void S4dConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  std::vector<double> a_im;
  const auto n = static_cast<double>(d_state);
  for (int64_t i = 0; i < d_state / 2; ++i) {
    const auto x = static_cast<double>(i);
    a_im.push_back(init == S4dInit::lin ? M_PI * x : n / M_PI * (n / (2 * x + 1) - 1));
  }
  if (init == S4dInit::legs) a_im = imaginary_parts(hippo_legs(d_state).lambda);
  declare_lti_diagonal(list, scope, a_im, dt_min, dt_max);
  declare_lti_output(list, scope, d_state / 2);
}

std::vector<spec::StateDecl> S4dConfig::state(const spec::Scope& scope) const {
  return lti_state(scope, d_state);
}

double S4dConfig::extra_flops(const spec::Scope& scope, int64_t) const {
  return 6.0 * static_cast<double>(scope.d_model * d_state);
}

}  // namespace tessera::nn
