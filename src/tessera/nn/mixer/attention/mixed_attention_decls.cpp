#include <cmath>

#include "tessera/nn/mixer/attention/mixed_attention.h"
#include "tessera/nn/mixer/convolution/grouped_conv_decl.h"

namespace tessera::nn {

void MixedAttentionConfig::check(const spec::Scope& scope) const {
  if (scope.causal)
    fail(ErrorKind::spec, scope.path,
         "mixed_attention needs an encoder: its convolutions read both sides; in a decoder use "
         "attention");
  if (kernel % 2 == 0)
    fail(ErrorKind::spec, scope.path, "kernel = {}; expected an odd number of taps", kernel);
}

void MixedAttentionConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  const int64_t inner = n_heads * head_dim, width = scope.d_model;
  list.linear("q", inner, width, bias.q, spec::Init::query(head_dim));
  list.linear("k", inner, width, bias.k);
  list.linear("v", inner, width, bias.v, spec::Init::content());
  // framework default of a depthwise convolution: uniform within 1 / sqrt(taps)
  const double bound = 1 / std::sqrt(static_cast<double>(kernel));
  spec::ParamList conv = list.under("span_conv");
  declare_grouped_conv(conv, {width, width, kernel}, spec::Init::uniform(-bound, bound), nullptr);
  list.append(conv);
  list.linear("span", inner, width, conv_bias);
  list.linear("taps", n_heads * kernel, inner, conv_bias);
  list.linear("u", inner, width, conv_bias, spec::Init::content());
  list.linear("o", width, 2 * inner, bias.o, spec::Init::into_stream(scope.n_layers));
}

double MixedAttentionConfig::extra_flops(const spec::Scope&, int64_t context) const {
  const auto inner = static_cast<double>(n_heads * head_dim);
  // scores and weighted values; taps times values
  return inner * (4 * static_cast<double>(context) + 2 * static_cast<double>(kernel));
}

}  // namespace tessera::nn
