// Cross-attention: queries from the decoder, keys and values from what the encoder made of the
// row's source. Every query sees the whole source, and no position enters.
//   s_ij = scale * q_i . k_j;  s <- softcap * tanh(s / softcap);  p_i = softmax over the source;
//   o_i = sum_j p_ij v_j,      q = W_q x,  k = W_k e,  v = W_v e
// Keys and values are computed once per source and kept as state.
// Vaswani et al. 2017, arXiv:1706.03762, sec. 3.2.3.
#pragma once

#include "tessera/nn/mixer/attention/attention.h"

namespace tessera::nn {

struct CrossAttentionConfig final : spec::Config {
  int64_t n_heads = 0;
  int64_t n_kv_heads = 0;
  int64_t head_dim = 0;
  AttentionBias bias;
  spec::Part<spec::Slot::norm> qk_norm;
  QkNormOver qk_norm_over = QkNormOver::head;
  ScoreScale scale = ScoreScale::rsqrt_head_dim;
  double scale_value = 1;
  double softcap = 0;
  double dropout = 0;

  static constexpr auto fields() {
    using C = CrossAttentionConfig;
    using spec::field;
    return std::tuple{
        field("n_heads", &C::n_heads, "query heads", {.min = 1, .required = true}),
        field("n_kv_heads", &C::n_kv_heads,
              "key/value heads, divides n_heads; 0 = n_heads (MHA), 1 = MQA", {.min = 0}),
        field("head_dim", &C::head_dim, "width of one head; 0 = d_model / n_heads", {.min = 0}),
        field("bias", &C::bias, "which projections have a bias"),
        field("qk_norm", &C::qk_norm, "norm of queries and keys"),
        field("qk_norm_over", &C::qk_norm_over, "what the qk_norm's statistics cover"),
        field("scale", &C::scale, "factor on the scores"),
        field("scale_value", &C::scale_value,
              "the number that `value` and `rsqrt_of` take, and where a learned factor begins"),
        field("softcap", &C::softcap, "c in c * tanh(s / c) on the scores; 0 = none", {.min = 0}),
        field("dropout", &C::dropout, "probability on the attention weights, in training",
              {.min = 0})};
  }
  static spec::Info info() {
    return {.summary = "Attention of a decoder to what its encoder made of the source.",
            .paper = "Vaswani et al.: Attention Is All You Need, arXiv:1706.03762",
            .year = 2017,
            .forms = {.recurrent = true},
            .time = spec::Growth::quadratic};
  }
  int64_t width_of_head(const spec::Scope& scope) const {
    return head_dim > 0 ? head_dim : n_heads > 0 ? scope.d_model / n_heads : 0;
  }
  void complete(const spec::Scope& scope) override;
  void check(const spec::Scope& scope) const override;
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
  std::vector<spec::StateDecl> state(const spec::Scope& scope) const override;
  /// With as many tokens in the source as in the context.
  double extra_flops(const spec::Scope& scope, int64_t context) const override;
};

}  // namespace tessera::nn
