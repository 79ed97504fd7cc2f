#include "tessera/nn/mixer/linear/mlstm.h"

#include <cmath>

#include "tessera/nn/mixer/convolution/causal_conv_decl.h"

namespace tessera::nn {

using Kind = spec::ParamKind;

void MlstmConfig::complete(const spec::Scope& scope) {
  gate_cap = gate_cap.value_or(up_projection ? 0 : 15);
  norm_eps = norm_eps.value_or(up_projection ? 1e-5 : 1e-6);
  if (up_projection) {
    int64_t& inner = up_projection->d_inner;
    if (inner == 0) inner = 2 * scope.d_model;
    if (inner % n_heads != 0)
      fail(ErrorKind::spec, scope.path, "n_heads = {} does not divide up_projection.d_inner = {}",
           n_heads, inner);
    if (key_dim == 0) key_dim = inner / n_heads;
    if (value_dim == 0) value_dim = inner / n_heads;
    return;
  }
  if (key_dim == 0) {
    if (head_width(scope) % 2 != 0)
      fail(ErrorKind::spec, scope.path,
           "d_model / n_heads = {} is odd and key_dim is half of it; give key_dim",
           head_width(scope));
    key_dim = head_width(scope) / 2;
  }
  if (value_dim == 0) value_dim = head_width(scope);
}

void MlstmConfig::check(const spec::Scope& scope) const {
  require_causal(scope, "mlstm");
  if (!up_projection) return;
  const int64_t inner = up_projection->d_inner;
  if (key_dim != inner / n_heads || value_dim != key_dim)
    fail(ErrorKind::spec, scope.path,
         "key_dim = {} and value_dim = {}; with an up-projection both are d_inner / n_heads = {}: "
         "drop them",
         key_dim, value_dim, inner / n_heads);
  if (inner % up_projection->block != 0)
    fail(ErrorKind::spec, scope.path, "up_projection.block = {} does not divide its d_inner = {}",
         up_projection->block, inner);
  constexpr int64_t kMostHeads = 65536;  // initial values are listed head by head
  if (n_heads > kMostHeads)
    fail(ErrorKind::spec, scope.path, "n_heads = {}; expected at most {}", n_heads, kMostHeads);
}

void MlstmConfig::up_projected_params(spec::ParamList& list, const spec::Scope& scope) const {
  const int64_t d = scope.d_model, inner = up_projection->d_inner;
  const auto width = static_cast<double>(d);
  const spec::Init small = spec::Init::normal(std::sqrt(2 / (5 * width)));
  list.linear("up", 2 * inner, d, bias, small);
  if (up_projection->d_conv > 0) {
    const spec::Init conv = conv_init(up_projection->d_conv);
    declare_conv(list, "conv", {inner, up_projection->d_conv}, conv, &conv);
  }
  for (const char* name : {"q", "k", "v"})
    list.linear(name, inner, up_projection->block, bias, small);
  // gates that read nothing yet: heads forget at rates from fast to slow
  std::vector<double> forget;
  for (int64_t h = 0; h < n_heads; ++h)
    forget.push_back(n_heads > 1 ? 3 + 3 * static_cast<double>(h) / static_cast<double>(n_heads - 1)
                                 : 3);
  list.linear("i", n_heads, 3 * inner, false, spec::Init::constant(0));
  list.add({"i.bias", {n_heads}, spec::Init::normal(0.1), Kind::bias});
  list.linear("f", n_heads, 3 * inner, false, spec::Init::constant(0));
  list.add({"f.bias", {n_heads}, spec::Init::repeat(forget), Kind::bias});
  list.add({"norm.weight", {inner}, spec::Init::constant(1), Kind::norm});
  list.without("norm.bias");
  list.add({"skip", {inner}, spec::Init::constant(1), Kind::structural});
  list.linear("o", d, inner, bias,
              spec::Init::normal(2 / (static_cast<double>(scope.n_layers) * std::sqrt(width))));
}

void MlstmConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  if (up_projection) return up_projected_params(list, scope);
  list.linear("q", keys(), scope.d_model, bias);
  list.linear("k", keys(), scope.d_model, bias);
  list.linear("v", values(), scope.d_model, bias, spec::Init::content());
  list.linear("g", values(), scope.d_model, bias);
  // the input gate starts closed, the forget gate open
  list.linear("i", n_heads, scope.d_model, false);
  list.add({"i.bias", {n_heads}, spec::Init::constant(-10), Kind::bias});
  list.linear("f", n_heads, scope.d_model, false);
  list.add({"f.bias", {n_heads}, spec::Init::uniform(3, 6), Kind::bias});
  list.add({"norm.weight", {values()}, spec::Init::constant(1), Kind::norm});
  list.add_if(bias, {"norm.bias", {values()}, spec::Init::constant(0), Kind::bias});
  list.linear("o", scope.d_model, values(), bias, spec::Init::into_stream(scope.n_layers));
}

std::vector<spec::StateDecl> MlstmConfig::state(const spec::Scope&) const {
  using Kind = spec::StateDecl::Kind;
  // one more column of values holds the normaliser
  std::vector<spec::StateDecl> out{{"s", Kind::fixed, {n_heads, key_dim, value_dim + 1}},
                                   {"m", Kind::fixed, {n_heads}}};
  if (up_projection && up_projection->d_conv > 0)
    out.push_back(conv_state(up_projection->d_inner, up_projection->d_conv));
  return out;
}

double MlstmConfig::extra_flops(const spec::Scope& scope, int64_t context) const {
  double all = RecurrentConfig::extra_flops(scope, context);
  if (up_projection)
    all += 2.0 * static_cast<double>(up_projection->d_inner * up_projection->d_conv);
  return all;
}

}  // namespace tessera::nn
