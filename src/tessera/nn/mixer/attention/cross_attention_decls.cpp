#include "tessera/nn/mixer/attention/cross_attention.h"
#include "tessera/nn/mixer/heads.h"
#include "tessera/spec/kv_type.h"

namespace tessera::nn {

void CrossAttentionConfig::complete(const spec::Scope& scope) {
  complete_heads(scope.d_model, scope);
}

void CrossAttentionConfig::check(const spec::Scope& scope) const {
  if (scope.source == 0)
    fail(ErrorKind::spec, scope.path,
         "cross_attention stands where no encoder is; expected it in \"stacks.decoder\" of arch "
         "\"encoder_decoder\"");
  require_groups(n_kv_heads, n_heads, scope);
  check_scale(scope);
  check_qk_norm(scope);
}

void CrossAttentionConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  list.linear("q", n_heads * head_dim, scope.d_model, bias.q, spec::Init::query(head_dim));
  list.linear("k", n_kv_heads * head_dim, scope.source, bias.k);
  list.linear("v", n_kv_heads * head_dim, scope.source, bias.v, spec::Init::content());
  list.linear("o", scope.d_model, n_heads * head_dim, bias.o,
              spec::Init::into_stream(scope.n_layers));
  declare_scale(list, n_heads);
  declare_qk_norm(list, "q_norm", n_heads, head_dim, scope);
  declare_qk_norm(list, "k_norm", n_kv_heads, head_dim, scope);
}

std::vector<spec::StateDecl> CrossAttentionConfig::state(const spec::Scope&) const {
  using Kind = spec::StateDecl::Kind;
  return spec::packing({{"k", Kind::per_source, {n_kv_heads, head_dim}},
                        {"v", Kind::per_source, {n_kv_heads, head_dim}}});
}

double CrossAttentionConfig::extra_flops(const spec::Scope&, int64_t context) const {
  return 4.0 * static_cast<double>(n_heads * head_dim) * static_cast<double>(context);
}

}  // namespace tessera::nn
