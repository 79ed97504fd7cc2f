// Rules, parameters, state and cost of the state-space mixers: what needs no tensors.
#include <cmath>

#include "tessera/nn/mixer/convolution/causal_conv_decl.h"
#include "tessera/nn/mixer/scan/mamba.h"
#include "tessera/nn/mixer/scan/rg_lru.h"
#include "tessera/nn/mixer/scan/rwkv4.h"
#include "tessera/nn/mixer/convolution/short_conv.h"

namespace tessera::nn {
namespace {

using Kind = spec::ParamKind;

void refuse_encoder(const spec::Scope& scope, const char* name) {
  if (!scope.causal)
    fail(ErrorKind::spec, scope.path,
         "{} is causal and cannot stand in an encoder; use attention or fourier there", name);
}

spec::StateDecl fixed(const char* name, std::vector<int64_t> shape) {
  return {name, spec::StateDecl::Kind::fixed, std::move(shape)};
}

}  // namespace

void MambaConfig::check(const spec::Scope& scope) const {
  refuse_encoder(scope, "mamba");
  if (d_state > 4096)
    fail(ErrorKind::spec, scope.path, "d_state = {}; expected at most 4096", d_state);
  if (d_inner % n_heads != 0)
    fail(ErrorKind::spec, scope.path, "n_heads = {} does not divide d_inner = {}", n_heads,
         d_inner);
}

void MambaConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  list.linear("in", 2 * d_inner, scope.d_model, proj_bias);
  const spec::Init conv = conv_init(d_conv);
  declare_conv(list, "conv", {d_inner, d_conv}, conv, conv_bias ? &conv : nullptr);
  // block-diagonal: the rows of a head meet its channels alone
  list.linear("select", n_heads * (dt_rank + 2 * d_state), d_inner / n_heads, false);
  if (norm)
    for (const auto& [name, width] : {std::pair{"dt_norm", dt_rank}, std::pair{"b_norm", d_state},
                                      std::pair{"c_norm", d_state}}) {
      spec::Scope norm_scope = scope;
      norm_scope.width = width;
      spec::ParamList child = list.under(name);
      norm.config->params(child, norm_scope);
      list.append(child);
    }
  const double dt_bound = 1 / std::sqrt(static_cast<double>(dt_rank));
  list.linear("dt", d_inner, dt_rank, false, spec::Init::uniform(-dt_bound, dt_bound));
  list.add({"dt.bias",
            {d_inner},
            {spec::Init::Kind::softplus_log_uniform, 1e-3, 1e-1, 1e-4},
            Kind::structural});
  std::vector<double> a_log;
  for (int64_t n = 1; n <= d_state; ++n) a_log.push_back(std::log(static_cast<double>(n)));
  list.add({"a_log", {d_inner, d_state}, spec::Init::repeat(a_log), Kind::structural});
  list.add({"d", {d_inner}, spec::Init::constant(1), Kind::structural});
  list.linear("out", scope.d_model, d_inner, proj_bias, spec::Init::into_stream(scope.n_layers));
}

std::vector<spec::StateDecl> MambaConfig::state(const spec::Scope&) const {
  const std::vector<int64_t> shape = {d_state, d_inner / n_heads};
  return {fixed("ssm", n_heads == 1 ? shape : std::vector<int64_t>{n_heads, shape[0], shape[1]}),
          conv_state(d_inner, d_conv)};
}

double MambaConfig::extra_flops(const spec::Scope&, int64_t) const {
  return 9.0 * static_cast<double>(d_inner * d_state) + 2.0 * static_cast<double>(d_inner * d_conv);
}

void RgLruConfig::check(const spec::Scope& scope) const {
  refuse_encoder(scope, "rg_lru");
  if (width % n_heads != 0)
    fail(ErrorKind::spec, scope.path, "n_heads = {} does not divide width = {}", n_heads, width);
}

void RgLruConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  const auto rsqrt = [](double v) { return 1 / std::sqrt(v); };
  const auto d = static_cast<double>(scope.d_model), w = static_cast<double>(width);
  const int64_t block = width / n_heads;
  list.linear("x", width, scope.d_model, true, spec::Init::normal(rsqrt(d)));
  list.linear("y", width, scope.d_model, true, spec::Init::normal(rsqrt(d)));
  const spec::Init zero = spec::Init::constant(0);
  declare_conv(list, "conv", {width, d_conv},
               spec::Init::normal(0.1 * rsqrt(static_cast<double>(d_conv))), &zero);
  // block-diagonal: row o of block h meets the inputs of that block alone
  const spec::Init gate = spec::Init::normal(0.1 * rsqrt(static_cast<double>(block)));
  list.linear("input_gate", width, block, true, gate);
  list.linear("recurrent_gate", width, block, true, gate);
  // a = rho^(8 r) with rho^2 uniform: from 0.9 to 0.999 where the gate is open
  list.add({"lambda",
            {width},
            {spec::Init::Kind::sigmoid_root_of_uniform, 0.81, 0.998001, 0},
            Kind::structural});
  list.linear("out", scope.d_model, width, true,
              spec::Init::normal(std::sqrt(2 / (static_cast<double>(scope.n_layers) * w))));
}

std::vector<spec::StateDecl> RgLruConfig::state(const spec::Scope&) const {
  return {fixed("h", {width}), conv_state(width, d_conv)};
}

double RgLruConfig::extra_flops(const spec::Scope&, int64_t) const {
  return static_cast<double>(width) * (12.0 + 2.0 * static_cast<double>(d_conv));
}

void Rwkv4Config::check(const spec::Scope& scope) const {
  refuse_encoder(scope, "rwkv4");
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
  return {fixed("wkv", {3, width}), fixed("shift", {scope.d_model})};
}

double Rwkv4Config::extra_flops(const spec::Scope& scope, int64_t) const {
  return 20.0 * static_cast<double>(width) + 9.0 * static_cast<double>(scope.d_model);
}

void ShortConvConfig::check(const spec::Scope& scope) const {
  refuse_encoder(scope, "short_conv");
}

void ShortConvConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  list.linear("in", 3 * scope.d_model, scope.d_model, bias);
  const spec::Init conv = conv_init(d_conv);
  declare_conv(list, "conv", {scope.d_model, d_conv}, conv, bias ? &conv : nullptr);
  list.linear("out", scope.d_model, scope.d_model, bias, spec::Init::into_stream(scope.n_layers));
}

std::vector<spec::StateDecl> ShortConvConfig::state(const spec::Scope& scope) const {
  return {conv_state(scope.d_model, d_conv)};
}

double ShortConvConfig::extra_flops(const spec::Scope& scope, int64_t) const {
  return static_cast<double>(scope.d_model) * (2.0 + 2.0 * static_cast<double>(d_conv));
}

}  // namespace tessera::nn
