#include "tessera/nn/mixer/linear/linear_attention.h"

#include <fmt/format.h>

namespace tessera::nn {

void LinearAttentionConfig::check(const spec::Scope& scope) const {
  if (feature == FeatureMap::softmax && scope.causal)
    fail(ErrorKind::spec, scope.path,
         "linear_attention with feature softmax needs an encoder: its keys are a softmax over the "
         "whole document; use elu1");
  if ((feature == FeatureMap::identity || feature == FeatureMap::hadamard) && *normaliser)
    fail(ErrorKind::spec, scope.path,
         "normaliser = true with feature {} can divide by zero; drop the normaliser, or take "
         "another feature",
         spec::enum_name(feature));
  if (tied_features && feature != FeatureMap::hadamard)
    fail(ErrorKind::spec, scope.path,
         "tied_features with feature {}, which is not learned; use hadamard, or leave it out",
         spec::enum_name(feature));
  if ((sum_norm_q || sum_norm_k) && feature == FeatureMap::softmax)
    fail(ErrorKind::spec, scope.path,
         "sum_norm_q and sum_norm_k with feature softmax, whose sums are 1; leave them out");
  if (!*normaliser && eps != LinearAttentionConfig().eps)
    fail(ErrorKind::spec, scope.path,
         "eps = {} without a normaliser; set normaliser, or leave it out", eps);
}

void LinearAttentionConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  list.linear("q", keys(), scope.d_model, bias);
  list.linear("k", keys(), scope.d_model, bias);
  list.linear("v", values(), scope.d_model, bias, spec::Init::content());
  list.linear("o", scope.d_model, values(), bias, spec::Init::into_stream(scope.n_layers));
  if (feature == FeatureMap::hadamard)
    for (const char* side : {"feature_q", "feature_k"}) {
      if (tied_features && std::string_view(side) == "feature_k") continue;
      for (const char* factor : {"first", "second"})
        list.linear(fmt::format("{}.{}", side, factor), key_dim, key_dim, true);
    }
  if (head_norm) head_norm.config->params_under(list, "head_norm", child_scope(scope, "head_norm"));
}

std::vector<spec::StateDecl> LinearAttentionConfig::state(const spec::Scope&) const {
  return {{"s", spec::StateDecl::Kind::fixed, {n_heads, key_dim, columns()}}};
}

}  // namespace tessera::nn
