#include "tessera/nn/mixer/attention/local_attention.h"

#include <algorithm>

#include "tessera/spec/kv_type.h"

#include "tessera/nn/mixer/attention/chunk_padding.h"

namespace tessera::nn {

void LocalAttentionConfig::check(const spec::Scope& scope) const {
  if (scope.causal && chunks_after > 0)
    fail(ErrorKind::spec, scope.path,
         "chunks_after = {} needs an encoder: a decoder sees no later chunk; use 0", chunks_after);
  check_padding(pad_to, chunk, scope);
  if (scope.causal && pad_to > 0)
    fail(ErrorKind::spec, scope.path,
         "pad_to = {} needs an encoder: a decoder has no ring of chunks; use 0", pad_to);
}

void LocalAttentionConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  list.linear("q", n_heads * head_dim, scope.d_model, bias.q, spec::Init::query(head_dim));
  list.linear("k", n_heads * head_dim, scope.d_model, bias.k);
  list.linear("v", n_heads * head_dim, scope.d_model, bias.v, spec::Init::content());
  list.linear("o", scope.d_model, n_heads * head_dim, bias.o,
              spec::Init::into_stream(scope.n_layers));
  if (position) position.config->params_under(list, "position", child_scope(scope, "position"));
}

std::vector<spec::StateDecl> LocalAttentionConfig::state(const spec::Scope&) const {
  using Kind = spec::StateDecl::Kind;
  const int64_t keep = chunk * (chunks_before + 1);
  return spec::packing({{"k", Kind::per_token, {n_heads, head_dim}, keep},
                        {"v", Kind::per_token, {n_heads, head_dim}, keep}});
}

double LocalAttentionConfig::extra_flops(const spec::Scope&, int64_t context) const {
  const int64_t seen = std::min(context, chunk * (chunks_before + 1 + chunks_after));
  return 4.0 * static_cast<double>(n_heads * head_dim) * static_cast<double>(seen);
}

}  // namespace tessera::nn
