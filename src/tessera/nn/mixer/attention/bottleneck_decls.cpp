#include <fmt/format.h>

#include "tessera/nn/mixer/attention/bottleneck.h"

namespace tessera::nn {

void BottleneckConfig::check(const spec::Scope& scope) const {
  if (scope.causal)
    fail(ErrorKind::spec, scope.path,
         "bottleneck needs an encoder: its queries see the whole document; in a decoder use "
         "attention and feed-forward layers");
  if (width % n_heads != 0)
    fail(ErrorKind::spec, scope.path, "n_heads = {} does not divide width = {}", n_heads, width);
  if (!ffn) fail(ErrorKind::spec, scope.at("ffn").path, "found null; expected a layer");
  if (!norm) fail(ErrorKind::spec, scope.at("norm").path, "found null; expected a norm");
}

void BottleneckConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  const spec::Scope inner = child_scope(scope, "ffn");
  const int64_t read = attention == BottleneckAttention::stream ? scope.d_model : width;
  list.linear("in", width, scope.d_model, project_bias);
  norm.config->params_under(list, "in_norm", inner);
  if (attention == BottleneckAttention::stream) {
    list.linear("qk", width, scope.d_model, project_bias);
    norm.config->params_under(list, "qk_norm", inner);
  }
  list.linear("q", width, width, bias.q, spec::Init::query(width / n_heads));
  list.linear("k", width, width, bias.k);
  list.linear("v", width, read, bias.v, spec::Init::content());
  list.linear("o", width, width, bias.o);
  norm.config->params_under(list, "o_norm", inner);
  for (int64_t i = 0; i < n_ffns; ++i) {
    ffn.config->params_under(list, fmt::format("ffn.{}", i), inner);
    norm.config->params_under(list, fmt::format("ffn_norm.{}", i), inner);
  }
  list.linear("out", scope.d_model, width, project_bias, spec::Init::into_stream(scope.n_layers));
}

double BottleneckConfig::extra_flops(const spec::Scope& scope, int64_t context) const {
  return 4 * static_cast<double>(width) * static_cast<double>(context) +
         static_cast<double>(n_ffns) * ffn.config->extra_flops(child_scope(scope, "ffn"), context);
}

}  // namespace tessera::nn
