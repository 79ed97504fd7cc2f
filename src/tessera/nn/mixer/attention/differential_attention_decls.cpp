#include <cmath>

#include "tessera/nn/mixer/attention/differential_attention.h"
#include "tessera/nn/mixer/heads.h"
#include "tessera/nn/position/position_config.h"
#include "tessera/spec/kv_type.h"

namespace tessera::nn {

void DifferentialAttentionConfig::check(const spec::Scope& scope) const {
  require_groups(n_kv_heads, n_heads, scope);
  if (!norm)
    fail(ErrorKind::spec, scope.path,
         "norm is null; the difference of two maps has no fixed scale: give a norm, such as "
         "\"rms_norm\"");
  check_pattern(pattern, position, n_heads, scope);
  check_one_projection(pattern, "differential_attention", scope);
  if (position && position.as<PositionConfig>().adds_values())
    fail(
        ErrorKind::spec, scope.path,
        "position \"{}\" adds vectors of head_dim = {} channels to the values, which have {} here; "
        "set its \"values\" to false",
        position.type(), head_dim, 2 * head_dim);
}

void DifferentialAttentionConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  const int64_t q = 2 * n_heads * head_dim, kv = 2 * n_kv_heads * head_dim;
  list.linear("q", q, scope.d_model, bias.q, spec::Init::query(head_dim));
  list.linear("k", kv, scope.d_model, bias.k);
  list.linear("v", kv, scope.d_model, bias.v, spec::Init::content());
  list.linear("o", scope.d_model, q, bias.o, spec::Init::into_stream(scope.n_layers));
  for (const char* name : {"lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"})
    list.add({name, {head_dim}, spec::Init::normal(0.1), spec::ParamKind::structural});
  spec::ParamList child = list.under("norm");
  norm.config->params(child, child_scope(scope, "norm"));
  list.append(child);
  if (position) position.config->params_under(list, "position", child_scope(scope, "position"));
}

std::vector<spec::StateDecl> DifferentialAttentionConfig::state(const spec::Scope&) const {
  using Kind = spec::StateDecl::Kind;
  return kept_for(pattern_config(),
                  spec::packing({{"k", Kind::per_token, {2 * n_kv_heads, head_dim}},
                                 {"v", Kind::per_token, {n_kv_heads, 2 * head_dim}}}));
}

double DifferentialAttentionConfig::extra_flops(const spec::Scope&, int64_t context) const {
  // two maps, each q . k over e and weights over 2 e
  return 12.0 * static_cast<double>(n_heads * head_dim) *
         static_cast<double>(pattern_config().keys_met(context));
}

double DifferentialAttentionConfig::initial_lambda(int64_t layer) const {
  return lambda_init.value_or(0.8 - 0.6 * std::exp(-0.3 * static_cast<double>(layer)));
}

}  // namespace tessera::nn
