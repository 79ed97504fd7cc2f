// Mixed attention: heads of softmax attention and heads of a span-based dynamic convolution,
// which makes its taps from the query of a token and a convolution of its span.
//   a_t = softmax(q_t . k_s / sqrt(D)) v_s                              heads of attention
//   w_t = softmax(W_w (q_t * (W_s conv(x)_t + b_s)) + b_w)              kernel taps for each head
//   c_t = sum_j w_tj u_(t + j - kernel / 2),  u = W_u x + b_u           heads of convolution
//   y = W_o [a; c] + b_o
// conv is a depthwise convolution of `kernel` taps; outside of a document stand zeros. Jiang et al.
// 2020, arXiv:2008.02496 (ConvBERT), sec. 3.2 and 3.3; the taps of a span: Wu et al. 2019,
// arXiv:1901.10430 (dynamic convolution). Golden: tools/golden/mixed_attention.py.
//
// Encoders only: attention and convolutions read both sides.
#pragma once

#include "tessera/nn/mixer/attention/attention_bias.h"
#include "tessera/nn/mixer/heads.h"

namespace tessera::nn {

struct MixedAttentionConfig final : spec::Config {
  int64_t n_heads = 0;
  int64_t head_dim = 0;
  int64_t kernel = 9;
  AttentionBias bias;
  bool conv_bias = false;
  double dropout = 0;

  static constexpr auto fields() {
    using C = MixedAttentionConfig;
    using spec::field;
    return std::tuple{
        field("n_heads", &C::n_heads, "heads of attention, and as many of convolution",
              {.min = 1, .required = true}),
        field("head_dim", &C::head_dim, "width of one head; 0 = d_model / (2 n_heads)", {.min = 0}),
        field("kernel", &C::kernel,
              "taps of either convolution, the token's own in the middle; odd", {.min = 1}),
        field("bias", &C::bias, "which projections of the attention, and the output, have a bias"),
        field("conv_bias", &C::conv_bias,
              "whether those of the convolution have one: of the span, of the taps, of its values"),
        field("dropout", &C::dropout, "probability on the attention weights, in training",
              {.min = 0, .below = 1})};
  }
  static spec::Info info() {
    return {.summary =
                "Softmax attention and a span-based dynamic convolution, half of the heads each.",
            .paper =
                "Jiang et al.: ConvBERT: Improving BERT with Span-based Dynamic Convolution, "
                "arXiv:2008.02496",
            .year = 2020,
            .causality = spec::Causality::none,
            .forms = {},
            .time = spec::Growth::quadratic};
  }
  void complete(const spec::Scope& scope) override {
    require_heads_divide(head_dim, 2 * n_heads, scope.d_model, scope, "2 n_heads");
    if (head_dim == 0) head_dim = scope.d_model / (2 * n_heads);
  }
  void check(const spec::Scope& scope) const override;
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
  double extra_flops(const spec::Scope& scope, int64_t context) const override;
};

}  // namespace tessera::nn
