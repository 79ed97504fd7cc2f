// Softmax attention. MHA, MQA and GQA are the same thing with other n_kv_heads: query head h reads
// key/value head floor(h * n_kv_heads / n_heads).
//   s_ij = scale * t_i q_i . k_j;  s <- softcap * tanh(s / softcap);  p_i = softmax over visible j
//   o_i = sum_j p_ij v_j;   o_i <- o_i * sigmoid(W_g x_i + b_g) where there is a gate; gate_at puts
//   it on the values or after the output projection instead
//   t_i = 1 + a ln(1 + floor((i + c) / floor)) where the temperature follows the position,
//   times ln(i + c) / ln n (log-n attention), where asked for only beyond 1
// A value head may be narrower or wider than a key head (v_head_dim: MiMo-V2-Flash).
// With k_eq_v the values are the projected keys, before norm and rotation: there is no W_v (Gemma
// 4's attention_k_eq_v). add_zero_attn is torch.nn.MultiheadAttention's: a key and value of zeros
// that every query sees in addition, without a position and without a place in the state. A layer
// may use the keys and values of an earlier one (`kv_of`, kv_sharing.h). `select` chooses the keys
// that a query attends to, by content (sparse attention). In groups of channels the projections are
// block-diagonal (channel_groups.h). A state may keep the keys that received the most weight, in
// addition to the last (`heavy`, heavy_hitters.h): every call then computes with those alone.
// Vaswani et al. 2017, arXiv:1706.03762; Shazeer 2019, arXiv:1911.02150 (MQA); Ainslie et
// al. 2023, arXiv:2305.13245 (GQA). Golden: attention G1, G2.
//
// Its config is made of components, which other mixers have as well: heads (heads.h), qk_norm.h,
// score_scale.h, output_gate.h and kv_sharing.h. Each has what it does in a call in a header of its
// own (head_norms.h, score_scaling.h, head_gate.h, shared_keys.h). call_form.h has the forms.
#pragma once

#include "tessera/nn/channel_groups.h"
#include "tessera/nn/mixer/attention/attention_bias.h"
#include "tessera/nn/mixer/attention/heavy_hitters.h"
#include "tessera/nn/mixer/attention/kv_sharing.h"
#include "tessera/nn/mixer/attention/output_gate.h"
#include "tessera/nn/mixer/attention/qk_norm.h"
#include "tessera/nn/mixer/attention/query_temperature.h"
#include "tessera/nn/mixer/attention/score_scale.h"
#include "tessera/nn/mixer/heads.h"
#include "tessera/nn/pattern/pattern_config.h"
#include "tessera/nn/position/position_config.h"
#include "tessera/nn/select/select_config.h"
#include "tessera/spec/placed.h"

namespace tessera::nn {

/// Groups of channels of the projections.
struct AttentionGroups {
  int64_t q = 1, k = 1, v = 1, o = 1;
  static constexpr auto fields() {
    using C = AttentionGroups;
    using spec::field;
    return std::tuple{
        field("q", &C::q, "queries", {.min = 1}), field("k", &C::k, "keys", {.min = 1}),
        field("v", &C::v, "values", {.min = 1}), field("o", &C::o, "output", {.min = 1})};
  }
};

struct AttentionConfig final : spec::Config,
                               spec::ReadsEarlierParts,
                               HeadsConfig,
                               QkNormConfig,
                               ScoreScaleConfig,
                               OutputGateConfig,
                               KvSharingConfig {
  int64_t v_head_dim = 0;
  AttentionBias bias;
  AttentionGroups groups;
  double clip = 0;
  spec::Part<spec::Slot::norm> v_norm;
  bool k_eq_v = false;
  QueryTemperature temperature;
  double softcap = 0;
  bool sinks = false;
  bool add_zero_attn = false;
  spec::Part<spec::Slot::pattern> pattern;
  std::optional<HeavyHitters> heavy;
  spec::Part<spec::Slot::position> position;
  spec::Part<spec::Slot::select> select;
  spec::Part<spec::Slot::norm> inner_norm;
  double dropout = 0;

  static constexpr auto fields() {
    using C = AttentionConfig;
    using spec::field;
    return std::tuple_cat(
        HeadsConfig::fields("width of one head; 0 = width of the input / n_heads"),
        std::tuple{
            field("v_head_dim", &C::v_head_dim, "width of one value head; 0 = head_dim",
                  {.min = 0}),
            field("bias", &C::bias, "which projections have a bias"),
            field(
                "groups", &C::groups,
                "groups of channels that the projections keep apart (grouped 1x1 convolutions); 1 "
                "= whole matrices"),
            field("clip", &C::clip, "projections are clamped to [-clip, clip]; 0 = they are not",
                  {.min = 0})},
        QkNormConfig::fields_with_place(),
        std::tuple{
            field(
                "v_norm", &C::v_norm,
                "norm of each head's values, one weight for all (Gemma 3n: rms_norm, weight none)"),
            field("k_eq_v", &C::k_eq_v,
                  "whether values are the projected keys, before norm and rotation, without a "
                  "product of their own (Gemma 4)"),
            field("temperature", &C::temperature,
                  "growth of the queries with their position (Llama 4, log-n attention)")},
        ScoreScaleConfig::fields_with_site(),
        std::tuple{field("softcap", &C::softcap, "c in c * tanh(s / c) on the scores; 0 = none",
                         {.min = 0}),
                   field("sinks", &C::sinks,
                         "a learned logit per head that takes weight and gives nothing (gpt-oss)"),
                   field("add_zero_attn", &C::add_zero_attn,
                         "an additional key and value of zeros that every query sees")},
        OutputGateConfig::fields(),
        std::tuple{
            field("pattern", &C::pattern, "who sees whom", {.part = "full"}),
            field("heavy", &C::heavy,
                  "which keys stay as a text grows, by the weight they were given; null = all"),
            field("position", &C::position, "how order enters", {.part = "none"}),
            field("select", &C::select, "which keys a query attends to, by content; null = all"),
            field("inner_norm", &C::inner_norm,
                  "norm of the heads' outputs side by side, before the last product (sub-LN)"),
            field("dropout", &C::dropout, "probability on the attention weights, in training",
                  {.min = 0, .below = 1})},
        KvSharingConfig::fields());
  }
  static spec::Info info() {
    return {.summary = "Softmax attention with any number of key/value heads (MHA, GQA, MQA).",
            .paper =
                "Vaswani et al., arXiv:1706.03762; Shazeer, arXiv:1911.02150; Ainslie et al., "
                "arXiv:2305.13245",
            .year = 2017,
            .forms = {.recurrent = true, .recorded = true},
            .any_width = true};
  }
  /// Width of one value head.
  int64_t value_dim() const { return v_head_dim > 0 ? v_head_dim : head_dim; }
  spec::Scope child_scope(spec::Scope scope, std::string_view name) const {
    const bool of_values = name == "inner_norm" || name == "v_norm";
    scope.width = of_values && v_head_dim > 0 ? v_head_dim : width_of_head(scope.input_width());
    if (name == "inner_norm") scope.width *= n_heads;
    scope.n_heads = n_heads;
    scope.d_model = scope.input_width();  // a scheme's vectors meet the same projections
    if (name == "position") scope.places = {.rotation = true, .score_bias = true};
    if (name == "select") return select_scope(scope, scope.d_model, position);
    return scope;
  }
  void complete(const spec::Scope& scope) override {
    complete_heads(scope.input_width(), scope);
    if (v_head_dim == head_dim) v_head_dim = 0;
  }
  void check(const spec::Scope& scope) const override;
  void check_behind(const std::vector<spec::Placed>& before,
                    const spec::Scope& scope) const override;
  bool shares() const override {
    return shares_keys() || (select && select.as<SelectConfig>().shares());
  }
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
  std::vector<spec::StateDecl> state(const spec::Scope& scope) const override;
  double extra_flops(const spec::Scope& scope, int64_t context) const override;
  std::string not_recorded_reason() const override;

  /// Why sequences of up to `longest` tokens cannot be split over ranks (nn/sequence_split.h), and
  /// the remedy; "" where they can.
  std::string no_split_reason(int64_t longest) const;
  const PatternConfig& pattern_config() const { return pattern.as<PatternConfig>(); }
};

}  // namespace tessera::nn
