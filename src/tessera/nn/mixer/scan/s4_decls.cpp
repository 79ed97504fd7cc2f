#include "tessera/nn/mixer/scan/s4.h"

#include "tessera/nn/mixer/scan/hippo.h"
#include "tessera/nn/mixer/scan/lti_system.h"

namespace tessera::nn {

using Kind = spec::ParamKind;

namespace {

std::vector<double> pairs_of(const std::vector<std::complex<double>>& values) {
  std::vector<double> out;
  for (const auto& v : values) {
    out.push_back(v.real());
    out.push_back(v.imag());
  }
  return out;
}

}  // namespace

void S4Config::check(const spec::Scope& scope) const {
  check_lti(scope, "s4", d_state, dt_min, dt_max);
  constexpr int64_t kLargestDense = 128;  // a matrix of d_state^2 for every channel
  if (discretisation == Discretisation::zoh && d_state > kLargestDense)
    fail(ErrorKind::spec, scope.path,
         "d_state = {} with a zero-order hold; expected at most {}, or \"discretisation\": "
         "\"bilinear\"",
         d_state, kLargestDense);
}

void S4Config::params(spec::ParamList& list, const spec::Scope& scope) const {
  const Hippo hippo = hippo_legs(d_state);
  const int64_t h = scope.d_model, m = d_state / 2;
  declare_lti_diagonal(list, scope, imaginary_parts(hippo.lambda), dt_min, dt_max);
  list.add({"p", {h, m, 2}, spec::Init::repeat(pairs_of(hippo.p)), Kind::structural});
  list.add({"b", {h, m, 2}, spec::Init::repeat(pairs_of(hippo.b)), Kind::structural});
  declare_lti_output(list, scope, m);
}

std::vector<spec::StateDecl> S4Config::state(const spec::Scope& scope) const {
  return lti_state(scope, d_state);
}

double S4Config::extra_flops(const spec::Scope& scope, int64_t) const {
  if (discretisation == Discretisation::zoh)
    return 2.0 * static_cast<double>(scope.d_model * d_state * (d_state + 2));
  return 14.0 * static_cast<double>(scope.d_model * d_state);
}

}  // namespace tessera::nn
