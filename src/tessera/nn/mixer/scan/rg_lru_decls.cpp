#include "tessera/nn/mixer/scan/rg_lru.h"

#include <cmath>

#include "tessera/nn/mixer/causal.h"
#include "tessera/nn/mixer/convolution/causal_conv_decl.h"

namespace tessera::nn {

using Kind = spec::ParamKind;

void RgLruConfig::check(const spec::Scope& scope) const {
  require_causal(scope, "rg_lru");
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
  return {{"h", spec::StateDecl::Kind::fixed, {width}}, conv_state(width, d_conv)};
}

double RgLruConfig::extra_flops(const spec::Scope&, int64_t) const {
  return static_cast<double>(width) * (12.0 + 2.0 * static_cast<double>(d_conv));
}

}  // namespace tessera::nn
