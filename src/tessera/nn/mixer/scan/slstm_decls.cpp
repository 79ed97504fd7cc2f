#include <cmath>

#include "tessera/nn/mixer/convolution/causal_conv_decl.h"
#include "tessera/nn/mixer/scan/slstm.h"
#include "tessera/nn/mixer/causal.h"

namespace tessera::nn {

void SlstmConfig::check(const spec::Scope& scope) const {
  require_causal(scope, "slstm");
  constexpr int64_t kWidest = 65536;  // initial values are listed channel by channel
  if (scope.d_model > kWidest)
    fail(ErrorKind::spec, scope.path, "d_model = {}; expected at most {}", scope.d_model, kWidest);
  if (scope.d_model % n_heads != 0)
    fail(ErrorKind::spec, scope.path, "n_heads = {} does not divide d_model = {}", n_heads,
         scope.d_model);
}

void SlstmConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  using Kind = spec::ParamKind;
  const int64_t d = scope.d_model, p = d / n_heads;
  if (d_conv > 0) {
    const spec::Init conv = conv_init(d_conv);
    declare_conv(list, "conv", {d, d_conv}, conv, &conv);
  }
  // block-diagonal: row o of a head meets that head's inputs alone
  const spec::Init small = spec::Init::normal(std::sqrt(2 / (5 * static_cast<double>(d))));
  for (const char* gate : {"i", "f", "z", "o"}) list.linear(gate, d, p, false, small);
  list.linear("recurrent", 4 * d, p, false, spec::Init::constant(0));
  // forget gates start open, in every head more so in its first channels and in early layers
  const double deep = scope.n_layers > 1 ? static_cast<double>(scope.layer) /
                                               static_cast<double>(scope.n_layers - 1)
                                         : 0;
  std::vector<double> bias(static_cast<size_t>(4 * d), 0.0);
  for (int64_t c = 0; c < d; ++c) {
    const double along = p > 1 ? static_cast<double>(c % p) / static_cast<double>(p - 1) : 0;
    bias[static_cast<size_t>(d + c)] = 5 - 12 * std::pow(along, 0.3 + 1.3 * deep);
  }
  list.add({"bias", {4, d}, spec::Init::repeat(bias), Kind::bias});
  list.add({"norm.weight", {d}, spec::Init::constant(1), Kind::norm});
}

std::vector<spec::StateDecl> SlstmConfig::state(const spec::Scope& scope) const {
  std::vector<spec::StateDecl> out{{"cell", spec::StateDecl::Kind::fixed, {4, scope.d_model}}};
  if (d_conv > 0) out.push_back(conv_state(scope.d_model, d_conv));
  return out;
}

double SlstmConfig::extra_flops(const spec::Scope& scope, int64_t) const {
  return static_cast<double>(scope.d_model) * (40.0 + 2.0 * static_cast<double>(d_conv));
}

}  // namespace tessera::nn
