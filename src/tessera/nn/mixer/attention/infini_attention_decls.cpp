#include <algorithm>

#include "tessera/nn/mixer/attention/infini_attention.h"
#include "tessera/nn/mixer/causal.h"
#include "tessera/nn/mixer/heads.h"
#include "tessera/nn/position/position_config.h"

namespace tessera::nn {

void InfiniAttentionConfig::complete(const spec::Scope& scope) {
  complete_heads(scope.d_model, scope);
}

void InfiniAttentionConfig::check(const spec::Scope& scope) const {
  require_causal(scope, "infini_attention", "attention");
  require_groups(n_kv_heads, n_heads, scope);
}

void InfiniAttentionConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  list.linear("q", n_heads * head_dim, scope.d_model, bias.q, spec::Init::query(head_dim));
  list.linear("k", n_kv_heads * head_dim, scope.d_model, bias.k);
  list.linear("v", n_kv_heads * head_dim, scope.d_model, bias.v, spec::Init::content());
  list.linear("o", scope.d_model, n_heads * head_dim, bias.o,
              spec::Init::into_stream(scope.n_layers));
  list.add({"gate",
            {n_heads},
            spec::Init::constant(0),
            spec::ParamKind::structural,
            {spec::Role::head}});
  position.config->params_under(list, "position", child_scope(scope, "position"));
}

std::vector<spec::StateDecl> InfiniAttentionConfig::state(const spec::Scope&) const {
  using Kind = spec::StateDecl::Kind;
  const std::vector<int64_t> entry{n_kv_heads, head_dim};
  std::vector<spec::StateDecl> out{
      {"memory", Kind::fixed, {n_kv_heads, head_dim + 1, head_dim}},  // sums of [v, 1] by channel
      {"k", Kind::per_token, entry, segment},
      {"v", Kind::per_token, entry, segment}};
  if (rotates()) out.push_back({"k_unrotated", Kind::per_token, entry, segment});
  return out;
}

double InfiniAttentionConfig::extra_flops(const spec::Scope&, int64_t context) const {
  const auto width = static_cast<double>(n_heads * head_dim);
  return width * (4.0 * static_cast<double>(std::min(context, segment)) +
                  4.0 * static_cast<double>(head_dim + 1));
}

}  // namespace tessera::nn
