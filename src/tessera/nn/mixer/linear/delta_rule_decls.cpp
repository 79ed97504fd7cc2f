#include "tessera/nn/mixer/linear/delta_rule.h"

#include "tessera/nn/mixer/convolution/causal_conv_decl.h"

namespace tessera::nn {

using Kind = spec::ParamKind;

void delta_params(spec::ParamList& list,
                  const spec::Scope& scope,
                  const RecurrentConfig& config,
                  int64_t n_key_heads,
                  int64_t d_conv) {
  const int64_t keys = n_key_heads * config.key_dim, values = config.values();
  list.linear("q", keys, scope.d_model, false);
  list.linear("k", keys, scope.d_model, false);
  list.linear("v", values, scope.d_model, false, spec::Init::content());
  list.linear("beta", config.n_heads, scope.d_model, false);
  if (d_conv > 0)
    declare_conv(list, "conv", {2 * keys + values, d_conv}, conv_init(d_conv), nullptr);
  // what the three layers have or have not, each its own
  for (const char* name : {"conv.weight", "decay.weight", "decay_down.weight", "g.weight",
                           "g_down.weight", "a_log", "dt_bias"})
    list.without(name);
  list.add({"norm.weight", {config.value_dim}, spec::Init::constant(1), Kind::norm});
  list.linear("o", scope.d_model, values, false, spec::Init::into_stream(scope.n_layers));
}

void step_params(spec::ParamList& list, int64_t n_heads, int64_t steps) {
  using Draw = spec::Init::Kind;
  list.add(
      {"a_log", {n_heads}, {Draw::log_of_uniform, 1, 16, 0}, Kind::structural, {spec::Role::head}});
  list.add({"dt_bias", {steps}, {Draw::softplus_log_uniform, 1e-3, 1e-1, 1e-4}, Kind::structural});
}

std::vector<spec::StateDecl> delta_state(const RecurrentConfig& config,
                                         int64_t n_key_heads,
                                         int64_t d_conv) {
  using Kind = spec::StateDecl::Kind;
  std::vector<spec::StateDecl> out{
      {"s", Kind::fixed, {config.n_heads, config.key_dim, config.value_dim}}};
  if (d_conv > 0)
    out.push_back(conv_state(2 * n_key_heads * config.key_dim + config.values(), d_conv));
  return out;
}

double delta_flops(const RecurrentConfig& config, int64_t n_key_heads, int64_t d_conv) {
  const int64_t channels = 2 * n_key_heads * config.key_dim + config.values();
  return 7.0 * static_cast<double>(config.keys() * config.value_dim) +
         2.0 * static_cast<double>(channels * d_conv);
}

}  // namespace tessera::nn
