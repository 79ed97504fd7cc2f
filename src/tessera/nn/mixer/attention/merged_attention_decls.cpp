#include "tessera/nn/mixer/attention/merged_attention.h"

#include "tessera/nn/mixer/heads.h"
#include "tessera/spec/kv_type.h"

namespace tessera::nn {

void MergedAttentionConfig::complete(const spec::Scope& scope) {
  complete_heads(scope.d_model, scope);
}

void MergedAttentionConfig::check(const spec::Scope& scope) const {
  if (scope.source == 0)
    fail(ErrorKind::spec, scope.path,
         "merged_attention stands where no encoder is; expected it in \"stacks.decoder\" of arch "
         "\"encoder_decoder\"");
  if (!scope.causal)
    fail(
        ErrorKind::spec, scope.path,
        "merged_attention is causal, and this decoder sees targets whole (\"mask\"); use attention "
        "and cross_attention");
  if (scope.source != scope.d_model)
    fail(ErrorKind::spec, scope.path,
         "merged_attention reads a source of {} channels with the projections of {}; expected "
         "stacks of one width",
         scope.source, scope.d_model);
  if (pattern.type() != "full" && pattern.type() != "window")
    fail(ErrorKind::spec, scope.at("pattern").path,
         "pattern \"{}\" in merged_attention; expected \"full\" or \"window\"", pattern.type());
  require_groups(n_kv_heads, n_heads, scope);
  check_scale(scope);
  check_qk_norm(scope);
}

void MergedAttentionConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  list.linear("q", n_heads * head_dim, scope.d_model, bias.q, spec::Init::query(head_dim));
  list.linear("k", n_kv_heads * head_dim, scope.d_model, bias.k);
  list.linear("v", n_kv_heads * head_dim, scope.d_model, bias.v, spec::Init::content());
  list.linear("o", scope.d_model, n_heads * head_dim, bias.o,
              spec::Init::into_stream(scope.n_layers));
  declare_scale(list, n_heads);
  position.config->params_under(list, "position", child_scope(scope, "position"));
  declare_qk_norm(list, "q_norm", n_heads, head_dim, scope);
  declare_qk_norm(list, "k_norm", n_kv_heads, head_dim, scope);
}

std::vector<spec::StateDecl> MergedAttentionConfig::state(const spec::Scope&) const {
  using Kind = spec::StateDecl::Kind;
  const std::vector<int64_t> entry{n_kv_heads, head_dim};
  std::vector<spec::StateDecl> out =
      kept_for(pattern_config(),
               spec::packing({{"k", Kind::per_token, entry}, {"v", Kind::per_token, entry}}));
  for (spec::StateDecl& decl : spec::packing(
           {{"source_k", Kind::per_source, entry}, {"source_v", Kind::per_source, entry}}))
    out.push_back(std::move(decl));
  return out;
}

double MergedAttentionConfig::extra_flops(const spec::Scope&, int64_t context) const {
  return 4.0 * static_cast<double>(n_heads * head_dim) *
         static_cast<double>(context + pattern_config().keys_met(context));
}

}  // namespace tessera::nn
