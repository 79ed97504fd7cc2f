#include "tessera/nn/mixer/attention/segment_config.h"
#include "tessera/nn/mixer/heads.h"

#include <algorithm>

namespace tessera::nn {

void SegmentConfig::complete(const spec::Scope& scope) {
  require_heads_divide(head_dim, n_heads, scope.d_model, scope);
  if (head_dim == 0) head_dim = scope.d_model / n_heads;
}

void SegmentConfig::check(const spec::Scope& scope) const {
  if (!scope.causal)
    fail(ErrorKind::spec, scope.path,
         "a memory of earlier segments is for decoders and cannot stand in an encoder; use "
         "attention there");
  if (!position)
    fail(ErrorKind::spec, scope.at("position").path, "found null; expected a scheme, or \"none\"");
}

void SegmentConfig::declare(spec::ParamList& list, const spec::Scope& scope) const {
  list.linear("q", n_heads * head_dim, scope.d_model, false, spec::Init::query(head_dim));
  list.linear("k", n_heads * head_dim, scope.d_model, false);
  list.linear("v", n_heads * head_dim, scope.d_model, false, spec::Init::content());
  list.linear("o", scope.d_model, n_heads * head_dim, false,
              spec::Init::into_stream(scope.n_layers));
  position.config->params_under(list, "position", child_scope(scope, "position"));
}

std::vector<spec::StateDecl> SegmentConfig::kept_inputs(const spec::Scope& scope,
                                                        int64_t keep) const {
  using Kind = spec::StateDecl::Kind;
  return {{"x", Kind::per_token, {scope.d_model}, keep},
          {"k", Kind::per_token, {n_heads, head_dim}, keep},
          {"v", Kind::per_token, {n_heads, head_dim}, keep}};
}

double SegmentConfig::extra_flops(const spec::Scope&, int64_t context) const {
  return 4.0 * static_cast<double>(n_heads * head_dim) *
         static_cast<double>(std::min(context, mem_len + segment));
}

}  // namespace tessera::nn
