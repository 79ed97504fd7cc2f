#include "tessera/nn/mixer/linear/linear_attention.h"

namespace tessera::nn {

void LinearAttentionConfig::check(const spec::Scope& scope) const {
  if (feature == FeatureMap::softmax && scope.causal)
    fail(ErrorKind::spec, scope.path,
         "linear_attention with feature softmax needs an encoder: its keys are a softmax over the "
         "whole document; use elu1");
  if (feature == FeatureMap::identity && *normaliser)
    fail(ErrorKind::spec, scope.path,
         "normaliser = true with feature identity can divide by zero; drop the normaliser, or take "
         "another feature");
  if (!*normaliser && eps != LinearAttentionConfig().eps)
    fail(ErrorKind::spec, scope.path,
         "eps = {} without a normaliser; set normaliser, or leave it out", eps);
}

void LinearAttentionConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  list.linear("q", keys(), scope.d_model, bias);
  list.linear("k", keys(), scope.d_model, bias);
  list.linear("v", values(), scope.d_model, bias, spec::Init::content());
  list.linear("o", scope.d_model, values(), bias, spec::Init::into_stream(scope.n_layers));
}

std::vector<spec::StateDecl> LinearAttentionConfig::state(const spec::Scope&) const {
  return {{"s", spec::StateDecl::Kind::fixed, {n_heads, key_dim, columns()}}};
}

}  // namespace tessera::nn
