#include <cmath>

#include "tessera/nn/mixer/scan/hippo.h"
#include "tessera/nn/mixer/scan/s4.h"
#include "tessera/nn/mixer/scan/s4d.h"

namespace tessera::nn {
namespace {

using Kind = spec::ParamKind;

void check_system(
    const spec::Scope& scope, const char* name, int64_t d_state, double dt_min, double dt_max) {
  if (!scope.causal)
    fail(ErrorKind::spec, scope.path,
         "{} is causal and cannot stand in an encoder; use attention or fourier there", name);
  if (d_state % 2 != 0)
    fail(ErrorKind::spec, scope.path, "d_state = {}; expected an even number: complex pairs",
         d_state);
  if (d_state > 512)
    fail(ErrorKind::spec, scope.path, "d_state = {}; expected at most 512", d_state);
  if (dt_min <= 0 || dt_max < dt_min)
    fail(ErrorKind::spec, scope.path, "dt_min = {}, dt_max = {}; expected 0 < dt_min <= dt_max",
         dt_min, dt_max);
}

/// What both systems have: steps, the diagonal of A, and around it the output.
void declare_diagonal(spec::ParamList& list,
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

void declare_output(spec::ParamList& list, const spec::Scope& scope, int64_t pairs) {
  const int64_t h = scope.d_model;
  // complex standard normal
  list.add({"c", {h, pairs, 2}, spec::Init::normal(std::sqrt(0.5)), Kind::structural});
  list.add({"d", {h}, spec::Init::normal(1), Kind::structural});
  list.linear("out", 2 * h, h, true);
}

std::vector<double> pairs_of(const std::vector<std::complex<double>>& values) {
  std::vector<double> out;
  for (const auto& v : values) {
    out.push_back(v.real());
    out.push_back(v.imag());
  }
  return out;
}

std::vector<double> imaginary(const std::vector<std::complex<double>>& values) {
  std::vector<double> out;
  for (const auto& v : values) out.push_back(v.imag());
  return out;
}

std::vector<spec::StateDecl> state_of(const spec::Scope& scope, int64_t d_state) {
  return {{"x", spec::StateDecl::Kind::fixed, {2, d_state / 2, scope.d_model}}};
}

}  // namespace

void S4dConfig::check(const spec::Scope& scope) const {
  check_system(scope, "s4d", d_state, dt_min, dt_max);
}

void S4dConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  std::vector<double> a_im;
  const auto n = static_cast<double>(d_state);
  for (int64_t i = 0; i < d_state / 2; ++i) {
    const auto x = static_cast<double>(i);
    a_im.push_back(init == S4dInit::lin ? M_PI * x : n / M_PI * (n / (2 * x + 1) - 1));
  }
  if (init == S4dInit::legs) a_im = imaginary(hippo_legs(d_state).lambda);
  declare_diagonal(list, scope, a_im, dt_min, dt_max);
  declare_output(list, scope, d_state / 2);
}

std::vector<spec::StateDecl> S4dConfig::state(const spec::Scope& scope) const {
  return state_of(scope, d_state);
}

double S4dConfig::extra_flops(const spec::Scope& scope, int64_t) const {
  return 6.0 * static_cast<double>(scope.d_model * d_state);
}

void S4Config::check(const spec::Scope& scope) const {
  check_system(scope, "s4", d_state, dt_min, dt_max);
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
  declare_diagonal(list, scope, imaginary(hippo.lambda), dt_min, dt_max);
  list.add({"p", {h, m, 2}, spec::Init::repeat(pairs_of(hippo.p)), Kind::structural});
  list.add({"b", {h, m, 2}, spec::Init::repeat(pairs_of(hippo.b)), Kind::structural});
  declare_output(list, scope, m);
}

std::vector<spec::StateDecl> S4Config::state(const spec::Scope& scope) const {
  return state_of(scope, d_state);
}

double S4Config::extra_flops(const spec::Scope& scope, int64_t) const {
  if (discretisation == Discretisation::zoh)
    return 2.0 * static_cast<double>(scope.d_model * d_state * (d_state + 2));
  return 14.0 * static_cast<double>(scope.d_model * d_state);
}

}  // namespace tessera::nn
