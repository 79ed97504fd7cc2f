#include "tessera/nn/mixer/scan/rwkv4.h"

#include <cmath>

#include "tessera/nn/mixer/causal.h"

namespace tessera::nn {

using Kind = spec::ParamKind;

void Rwkv4Config::check(const spec::Scope& scope) const {
  require_causal(scope, "rwkv4");
  constexpr int64_t kWidest = 65536;  // initial values are listed channel by channel
  if (width > kWidest || scope.d_model > kWidest)
    fail(ErrorKind::spec, scope.path, "width = {}, d_model = {}; expected at most {}", width,
         scope.d_model, kWidest);
}

void Rwkv4Config::params(spec::ParamList& list, const spec::Scope& scope) const {
  const auto layers = static_cast<double>(scope.n_layers), layer = static_cast<double>(scope.layer);
  const double deep = scope.n_layers > 1 ? layer / (layers - 1) : 0;  // 0 first, 1 last
  const double shallow = 1 - layer / layers;
  const auto per_channel = [](int64_t n, const auto& f) {
    std::vector<double> values;
    for (int64_t i = 0; i < n; ++i) values.push_back(f(static_cast<double>(i)));
    return spec::Init::repeat(values);
  };
  // how much of the present each channel sees: more in deep layers and high channels
  const auto d = static_cast<double>(scope.d_model);
  const auto mix = [&](const char* name, double power, double plus) {
    list.add({name,
              {scope.d_model},
              per_channel(scope.d_model, [&](double h) { return std::pow(h / d, power) + plus; }),
              Kind::structural});
  };
  mix("mix_k", shallow, 0);
  mix("mix_v", shallow, 0.3 * deep);
  mix("mix_r", 0.5 * shallow, 0);
  // keys, receptance and output start at zero: at first the layer adds nothing; the paper's values
  // are orthogonal, whose entries have this deviation
  const spec::Init zero = spec::Init::constant(0);
  list.linear("k", width, scope.d_model, false, zero);
  list.linear("v", width, scope.d_model, false, spec::Init::normal(1 / std::sqrt(d)));
  list.linear("r", width, scope.d_model, false, zero);
  const double last = width > 1 ? static_cast<double>(width - 1) : 1;
  list.add(
      {"time_decay",
       {width},
       per_channel(width, [&](double h) { return -5 + 8 * std::pow(h / last, 0.7 + 1.3 * deep); }),
       Kind::structural});
  list.add(
      {"time_first",
       {width},
       per_channel(width, [](double h) { return std::log(0.3) + 0.5 * (std::fmod(h + 1, 3) - 1); }),
       Kind::structural});
  list.linear("out", scope.d_model, width, false, zero);
}

std::vector<spec::StateDecl> Rwkv4Config::state(const spec::Scope& scope) const {
  return {{"wkv", spec::StateDecl::Kind::fixed, {3, width}},
          {"shift", spec::StateDecl::Kind::fixed, {scope.d_model}}};
}

double Rwkv4Config::extra_flops(const spec::Scope& scope, int64_t) const {
  return 20.0 * static_cast<double>(width) + 9.0 * static_cast<double>(scope.d_model);
}

}  // namespace tessera::nn
