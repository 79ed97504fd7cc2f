#include "tessera/nn/mixer/attention/forgetting_attention.h"

#include "tessera/nn/mixer/heads.h"
#include "tessera/spec/kv_type.h"

namespace tessera::nn {

void ForgettingAttentionConfig::complete(const spec::Scope& scope) {
  complete_heads(scope.d_model, scope);
}

void ForgettingAttentionConfig::check(const spec::Scope& scope) const {
  if (!scope.causal)
    fail(ErrorKind::spec, scope.path,
         "forgetting_attention is causal and cannot stand in an encoder; use attention there");
  require_groups(n_kv_heads, n_heads, scope);
  check_qk_norm(scope);
}

void ForgettingAttentionConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  list.linear("q", n_heads * head_dim, scope.d_model, bias.q, spec::Init::query(head_dim));
  list.linear("k", n_kv_heads * head_dim, scope.d_model, bias.k);
  list.linear("v", n_kv_heads * head_dim, scope.d_model, bias.v, spec::Init::content());
  list.linear("o", scope.d_model, n_heads * head_dim, bias.o,
              spec::Init::into_stream(scope.n_layers));
  list.linear("forget", n_heads, scope.d_model, true);
  output_gate().declare_gate(list, {n_heads, n_kv_heads, head_dim, scope.d_model}, scope.d_model);
  position.config->params_under(list, "position", child_scope(scope, "position"));
  declare_qk_norm(list, "q_norm", n_heads, head_dim, scope);
  declare_qk_norm(list, "k_norm", n_kv_heads, head_dim, scope);
}

std::vector<spec::StateDecl> ForgettingAttentionConfig::state(const spec::Scope&) const {
  using Kind = spec::StateDecl::Kind;
  std::vector<spec::StateDecl> out =
      spec::packing({{"k", Kind::per_token, {n_kv_heads, head_dim}},
                     {"v", Kind::per_token, {n_kv_heads, head_dim}}});
  out.push_back({"forget", Kind::per_token, {n_heads}});
  return out;
}

double ForgettingAttentionConfig::extra_flops(const spec::Scope&, int64_t context) const {
  return 4.0 * static_cast<double>(n_heads * head_dim) * static_cast<double>(context);
}

}  // namespace tessera::nn
