// Cross-attention: queries from the decoder, keys and values from what the encoder made of the
// row's source. Every query sees the whole source, and no position enters.
//   s_ij = scale * q_i . k_j;  s <- softcap * tanh(s / softcap);  p_i = softmax over the source;
//   o_i = sum_j p_ij v_j,      q = W_q x,  k = W_k e,  v = W_v e
// Keys and values are computed once per source and kept as state.
// Vaswani et al. 2017, arXiv:1706.03762, sec. 3.2.3.
#pragma once

#include "tessera/nn/mixer/attention/attention_bias.h"
#include "tessera/nn/mixer/attention/qk_norm.h"
#include "tessera/nn/mixer/attention/score_scale.h"
#include "tessera/nn/mixer/heads.h"

namespace tessera::nn {

struct CrossAttentionConfig final : spec::Config, HeadsConfig, QkNormConfig, ScoreScaleConfig {
  AttentionBias bias;
  double softcap = 0;
  double dropout = 0;

  static constexpr auto fields() {
    using C = CrossAttentionConfig;
    using spec::field;
    return std::tuple_cat(
        HeadsConfig::fields(), std::tuple{field("bias", &C::bias, "which projections have a bias")},
        QkNormConfig::fields(), ScoreScaleConfig::fields(),
        std::tuple{
            field("softcap", &C::softcap, "c in c * tanh(s / c) on the scores; 0 = none",
                  {.min = 0}),
            field("dropout", &C::dropout, "probability on the attention weights, in training",
                  {.min = 0, .below = 1})});
  }
  static spec::Info info() {
    return {.summary = "Attention of a decoder to what its encoder made of the source.",
            .paper = "Vaswani et al.: Attention Is All You Need, arXiv:1706.03762",
            .year = 2017,
            .forms = {.recurrent = true},
            .time = spec::Growth::quadratic};
  }
  void complete(const spec::Scope& scope) override;
  void check(const spec::Scope& scope) const override;
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
  std::vector<spec::StateDecl> state(const spec::Scope& scope) const override;
  /// With as many tokens in the source as in the context.
  double extra_flops(const spec::Scope& scope, int64_t context) const override;
};

}  // namespace tessera::nn
