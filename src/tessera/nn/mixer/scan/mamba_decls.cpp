#include "tessera/nn/mixer/scan/mamba.h"

#include <cmath>

#include "tessera/nn/mixer/causal.h"
#include "tessera/nn/mixer/convolution/causal_conv_decl.h"

namespace tessera::nn {

using Kind = spec::ParamKind;

void MambaConfig::check(const spec::Scope& scope) const {
  require_causal(scope, "mamba");
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
  std::vector<int64_t> shape{d_state, d_inner / n_heads};
  if (n_heads > 1) shape.insert(shape.begin(), n_heads);
  return {{"ssm", spec::StateDecl::Kind::fixed, shape}, conv_state(d_inner, d_conv)};
}

double MambaConfig::extra_flops(const spec::Scope&, int64_t) const {
  return 9.0 * static_cast<double>(d_inner * d_state) + 2.0 * static_cast<double>(d_inner * d_conv);
}

}  // namespace tessera::nn
