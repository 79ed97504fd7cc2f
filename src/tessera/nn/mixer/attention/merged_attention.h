// Self-attention and cross-attention of a decoder in one softmax: keys and values of the source
// join those of the tokens seen so far, made by the same projections and norms.
//   s_ij = scale * q_i . k_j;  s <- softcap * tanh(s / softcap)
//   p_i = softmax over the tokens that the pattern shows and the source;  o_i = sum_j p_ij v_j
//   q = N(W_q x),  k = N(W_k x) and N(W_k e),  v = W_v x and W_v e
// The position turns queries and the decoder's keys; keys of the source are not turned. A window
// hides tokens of the decoder alone. Keys and values of the source are computed once and kept as
// state. Zhang et al. 2025, arXiv:2512.14856 (T5Gemma 2), sec. 2.
#pragma once

#include "tessera/nn/mixer/attention/attention_bias.h"
#include "tessera/nn/mixer/attention/qk_norm.h"
#include "tessera/nn/mixer/attention/score_scale.h"
#include "tessera/nn/mixer/heads.h"
#include "tessera/nn/pattern/pattern_config.h"

namespace tessera::nn {

struct MergedAttentionConfig final : spec::Config, HeadsConfig, QkNormConfig, ScoreScaleConfig {
  AttentionBias bias;
  double softcap = 0;
  spec::Part<spec::Slot::pattern> pattern;
  spec::Part<spec::Slot::position> position;
  double dropout = 0;

  static constexpr auto fields() {
    using C = MergedAttentionConfig;
    using spec::field;
    return std::tuple_cat(
        HeadsConfig::fields(), std::tuple{field("bias", &C::bias, "which projections have a bias")},
        QkNormConfig::fields(), ScoreScaleConfig::fields(),
        std::tuple{
            field("softcap", &C::softcap, "c in c * tanh(s / c) on the scores; 0 = none",
                  {.min = 0}),
            field("pattern", &C::pattern,
                  "which tokens of the decoder a query sees: full or window", {.part = "full"}),
            field("position", &C::position, "a rotation of queries and the decoder's keys",
                  {.part = "none"}),
            field("dropout", &C::dropout, "probability on the attention weights, in training",
                  {.min = 0, .below = 1})});
  }
  static spec::Info info() {
    return {.summary = "Attention of a decoder to its own tokens and to the source in one softmax.",
            .paper = "Zhang et al.: T5Gemma 2, arXiv:2512.14856",
            .year = 2025,
            .forms = {.recurrent = true},
            .time = spec::Growth::quadratic};
  }
  spec::Scope child_scope(spec::Scope scope, std::string_view name) const {
    scope.width = width_of_head(scope.d_model);
    scope.n_heads = n_heads;
    if (name == "position") scope.places = {.rotation = true};
    return scope;
  }
  void complete(const spec::Scope& scope) override;
  void check(const spec::Scope& scope) const override;
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
  std::vector<spec::StateDecl> state(const spec::Scope& scope) const override;
  /// With as many tokens in the source as in the context.
  double extra_flops(const spec::Scope& scope, int64_t context) const override;
  const PatternConfig& pattern_config() const { return pattern.as<PatternConfig>(); }
};

}  // namespace tessera::nn
