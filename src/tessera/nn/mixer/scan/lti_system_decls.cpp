#include "tessera/nn/mixer/scan/lti_system.h"

#include <cmath>

#include "tessera/nn/mixer/causal.h"

namespace tessera::nn {

using Kind = spec::ParamKind;

void check_lti(
    const spec::Scope& scope, const char* name, int64_t d_state, double dt_min, double dt_max) {
  require_causal(scope, name);
  if (d_state % 2 != 0)
    fail(ErrorKind::spec, scope.path, "d_state = {}; expected an even number: complex pairs",
         d_state);
  if (dt_min <= 0 || dt_max < dt_min)
    fail(ErrorKind::spec, scope.path, "dt_min = {}, dt_max = {}; expected 0 < dt_min <= dt_max",
         dt_min, dt_max);
}

void declare_lti_diagonal(spec::ParamList& list,
                          const spec::Scope& scope,
                          const std::vector<double>& a_im,
                          double dt_min,
                          double dt_max) {
  const int64_t h = scope.d_model, m = static_cast<int64_t>(a_im.size());
  list.add(
      {"log_dt", {h}, spec::Init::uniform(std::log(dt_min), std::log(dt_max)), Kind::structural});
  list.add({"a_log", {h, m}, spec::Init::constant(std::log(0.5)), Kind::structural});
  list.add({"a_im", {h, m}, spec::Init::repeat(a_im), Kind::structural});
}

void declare_lti_output(spec::ParamList& list, const spec::Scope& scope, int64_t pairs) {
  const int64_t h = scope.d_model;
  // complex standard normal
  list.add({"c", {h, pairs, 2}, spec::Init::normal(std::sqrt(0.5)), Kind::structural});
  list.add({"d", {h}, spec::Init::normal(1), Kind::structural});
  list.linear("out", 2 * h, h, true);
}

std::vector<double> imaginary_parts(const std::vector<std::complex<double>>& values) {
  std::vector<double> out;
  for (const auto& v : values) out.push_back(v.imag());
  return out;
}

std::vector<spec::StateDecl> lti_state(const spec::Scope& scope, int64_t d_state) {
  return {{"x", spec::StateDecl::Kind::fixed, {2, d_state / 2, scope.d_model}}};
}

}  // namespace tessera::nn
