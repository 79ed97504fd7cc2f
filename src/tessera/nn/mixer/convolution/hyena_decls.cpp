#include <cmath>

#include "tessera/nn/mixer/convolution/causal_conv_decl.h"
#include "tessera/nn/mixer/convolution/hyena.h"
#include "tessera/nn/mixer/causal.h"

namespace tessera::nn {

void HyenaConfig::check(const spec::Scope& scope) const {
  require_causal(scope, "hyena");
}

void HyenaConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  using Kind = spec::ParamKind;
  const int64_t d = scope.d_model, channels = (order + 1) * d;
  list.linear("in", channels, d, true);
  const spec::Init conv = conv_init(d_conv);
  declare_conv(list, "conv", {channels, d_conv}, conv, &conv);
  // the filter's network: framework defaults, uniform within 1 / sqrt(fan-in)
  const auto dense = [&](const std::string& name, int64_t out, int64_t in, bool bias) {
    const double bound = 1 / std::sqrt(static_cast<double>(in));
    list.linear(name, out, in, false, spec::Init::uniform(-bound, bound));
    if (bias) list.add({name + ".bias", {out}, spec::Init::uniform(-bound, bound), Kind::bias});
  };
  dense("filter.in", filter_width, 1 + 2 * bands, true);
  for (int64_t i = 0; i < filter_layers; ++i)
    dense(fmt::format("filter.hidden.{}", i), filter_width, filter_width, true);
  dense("filter.out", (order - 1) * d, filter_width, false);
  list.add({"filter.frequency", {filter_width}, spec::Init::constant(10), Kind::structural});
  list.add({"bias", {order - 1, d}, spec::Init::normal(1), Kind::structural});
  list.linear("out", d, d, true, spec::Init::into_stream(scope.n_layers));
}

std::vector<spec::StateDecl> HyenaConfig::state(const spec::Scope& scope) const {
  std::vector<spec::StateDecl> all{conv_state((order + 1) * scope.d_model, d_conv)};
  for (int64_t i = 0; i < order - 1; ++i)
    all.push_back({fmt::format("z.{}", i), spec::StateDecl::Kind::per_token, {scope.d_model}});
  return all;
}

double HyenaConfig::extra_flops(const spec::Scope& scope, int64_t context) const {
  const auto d = static_cast<double>(scope.d_model), m = static_cast<double>(order),
             w = static_cast<double>(filter_width);
  const double filter = 2 * w * (w * static_cast<double>(filter_layers) + (m - 1) * d);
  const double transforms = 15 * (m - 1) * d * std::log2(2.0 * static_cast<double>(context + 1));
  return transforms + 2 * (m + 1) * d * static_cast<double>(d_conv) + filter;
}

}  // namespace tessera::nn
