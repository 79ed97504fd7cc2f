// Softmax attention. MHA, MQA and GQA are the same thing with other n_kv_heads: query head h reads
// key/value head floor(h * n_kv_heads / n_heads).
//   s_ij = scale * t_i q_i . k_j;  s <- softcap * tanh(s / softcap);  p_i = softmax over visible j
//   o_i = sum_j p_ij v_j;   o_i <- o_i * sigmoid(W_g x_i + b_g) where there is a gate; gate_at puts
//   it on the values or after the output projection instead
//   t_i = 1 + a ln(1 + floor((i + c) / floor)) where the temperature follows the position,
//   times ln(i + c) / ln n (log-n attention), where asked for only beyond 1
// A value head may be narrower or wider than a key head (v_head_dim: MiMo-V2-Flash).
// With k_eq_v the values are the projected keys, before norm and rotation: there is no W_v (Gemma 4's
// attention_k_eq_v).
// add_zero_attn is torch.nn.MultiheadAttention's: a key and value of zeros that every query sees
// in addition, without a position and without a place in the state.
// A layer may use the keys and values of an earlier one (`kv_of`), as it made them: then it has
// queries and an output of its own and keeps no state. Gemma 3n; Brandon et al. 2024,
// arXiv:2405.12981 (cross-layer attention). Successors of attention 4.
// `select` chooses the keys that a query attends to, by content (sparse attention).
// In groups of channels the projections are block-diagonal (channel_groups.h).
// A state may keep the keys that received the most weight, in addition to the last (`heavy`,
// heavy_hitters.h): every call then computes with those alone.
// Vaswani et al. 2017, arXiv:1706.03762; Shazeer 2019, arXiv:1911.02150 (MQA); Ainslie et
// al. 2023, arXiv:2305.13245 (GQA); gates: Qiu et al. 2025, arXiv:2505.06708. Golden: attention G1,
// G2.
#pragma once

#include "tessera/nn/channel_groups.h"
#include "tessera/nn/mixer/attention/heavy_hitters.h"
#include "tessera/nn/mixer/attention/query_temperature.h"
#include "tessera/nn/mixer/heads.h"
#include "tessera/nn/pattern/pattern_config.h"
#include "tessera/nn/position/position_config.h"
#include "tessera/nn/select/select_config.h"
#include "tessera/spec/placed.h"

namespace tessera::nn {

enum class ScoreScale {
  rsqrt_head_dim,  // head_dim^-1/2
  one,             // T5, GPT-Neo
  value,           // scale_value itself
  rsqrt_of,        // scale_value^-1/2 (Gemma 2 and 3)
  inverse_layer,   // head_dim^-1/2 / (layer + 1) (GPT-2 option)
  learned,         // one learned number, scale_value at first; after qk_norm l2_norm it is the g of
                   // cosine attention, s_ij = g cos(q_i, k_j)
  learned_headwise,  // one per query head
};
enum class ScaleOn {
  logits,  // scale (q_i . k_j)
  query,   // (scale q_i) . k_j: the same but for rounding (Longformer, BART, Whisper)
};
enum class QkNormOver {
  head,        // statistics per head, one weight [head_dim] shared by heads (Qwen3, Gemma 3)
  projection,  // statistics over the whole projection (OLMo 2)
  each_head,   // statistics per head, a norm with parameters of its own for every head (StableLM)
};
enum class QkNormAt {
  before_rotation,  // of the projections (Qwen3)
  after_rotation,   // of what the position has turned, so that a weight meets fixed channels
                    // (HunYuan)
};

enum class OutputGate {
  none,
  headwise,     // one number per head
  elementwise,  // one number per channel of every head (Qwen3-Next)
};
enum class GatePlace {
  after_sdpa,   // on what the heads have read
  after_value,  // on the values, before they are read
  after_o,      // on the output projection's result
};
enum class GateActivation { sigmoid, silu, softplus };

/// Which projections have a bias.
struct AttentionBias {
  bool q = false, k = false, v = false, o = false;
  static constexpr auto fields() {
    using C = AttentionBias;
    return std::tuple{spec::field("q", &C::q, "queries"), spec::field("k", &C::k, "keys"),
                      spec::field("v", &C::v, "values"), spec::field("o", &C::o, "output")};
  }
};

/// Groups of channels of the projections.
struct AttentionGroups {
  int64_t q = 1, k = 1, v = 1, o = 1;
  static constexpr auto fields() {
    using C = AttentionGroups;
    using spec::field;
    return std::tuple{field("q", &C::q, "queries", {.min = 1}), field("k", &C::k, "keys", {.min = 1}),
                      field("v", &C::v, "values", {.min = 1}), field("o", &C::o, "output", {.min = 1})};
  }
};

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::ScoreScale> {
  using S = nn::ScoreScale;
  static constexpr std::array names{std::pair{S::rsqrt_head_dim, "rsqrt_head_dim"},
                                    std::pair{S::one, "one"},
                                    std::pair{S::value, "value"},
                                    std::pair{S::rsqrt_of, "rsqrt_of"},
                                    std::pair{S::inverse_layer, "inverse_layer"},
                                    std::pair{S::learned, "learned"},
                                    std::pair{S::learned_headwise, "learned_headwise"}};
};
template <>
struct tessera::spec::EnumNames<tessera::nn::ScaleOn> {
  static constexpr std::array names{std::pair{nn::ScaleOn::logits, "logits"},
                                    std::pair{nn::ScaleOn::query, "query"}};
};
template <>
struct tessera::spec::EnumNames<tessera::nn::OutputGate> {
  using G = nn::OutputGate;
  static constexpr std::array names{std::pair{G::none, "none"}, std::pair{G::headwise, "headwise"},
                                    std::pair{G::elementwise, "elementwise"}};
};
template <>
struct tessera::spec::EnumNames<tessera::nn::GatePlace> {
  using P = nn::GatePlace;
  static constexpr std::array names{std::pair{P::after_sdpa, "after_sdpa"},
                                    std::pair{P::after_value, "after_value"},
                                    std::pair{P::after_o, "after_o"}};
};
template <>
struct tessera::spec::EnumNames<tessera::nn::GateActivation> {
  using A = nn::GateActivation;
  static constexpr std::array names{std::pair{A::sigmoid, "sigmoid"}, std::pair{A::silu, "silu"},
                                    std::pair{A::softplus, "softplus"}};
};
template <>
struct tessera::spec::EnumNames<tessera::nn::QkNormOver> {
  static constexpr std::array names{std::pair{nn::QkNormOver::head, "head"},
                                    std::pair{nn::QkNormOver::projection, "projection"},
                                    std::pair{nn::QkNormOver::each_head, "each_head"}};
};
template <>
struct tessera::spec::EnumNames<tessera::nn::QkNormAt> {
  static constexpr std::array names{std::pair{nn::QkNormAt::before_rotation, "before_rotation"},
                                    std::pair{nn::QkNormAt::after_rotation, "after_rotation"}};
};

namespace tessera::nn {

/// Norms of queries or keys by heads, under `name`: one for all, or `name`.<head> for each.
void declare_head_norms(spec::ParamList& list,
                        const std::string& name,
                        const spec::AnyPart& norm,
                        QkNormOver over,
                        int64_t heads,
                        int64_t head_dim,
                        spec::Scope scope);
/// The factor on the scores that `scale` names, in layer `layer` (from 0); 1 where it is learned.
double score_scale(ScoreScale scale, double value, int64_t head_dim, int64_t layer);
/// Where it is learned, declares it as "scale".
void declare_score_scale(spec::ParamList& list, ScoreScale scale, double value, int64_t n_heads);
/// Throws Error(spec) where `value` is given to a scale that takes none, or cannot take it.
void check_score_scale(ScoreScale scale, double value, const spec::Scope& scope);
/// Throws Error(spec) where `over` is given and there is no norm.
void check_qk_norm(const spec::AnyPart& norm, QkNormOver over, const spec::Scope& scope);

struct AttentionConfig final : spec::Config, spec::ReadsEarlierParts {
  int64_t n_heads = 0;
  int64_t n_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t v_head_dim = 0;
  AttentionBias bias;
  AttentionGroups groups;
  double clip = 0;
  spec::Part<spec::Slot::norm> qk_norm;
  QkNormOver qk_norm_over = QkNormOver::head;
  QkNormAt qk_norm_at = QkNormAt::before_rotation;
  spec::Part<spec::Slot::norm> v_norm;
  bool k_eq_v = false;
  QueryTemperature temperature;
  ScoreScale scale = ScoreScale::rsqrt_head_dim;
  double scale_value = 1;
  ScaleOn scale_on = ScaleOn::logits;
  double softcap = 0;
  bool sinks = false;
  bool add_zero_attn = false;
  OutputGate gate = OutputGate::none;
  GatePlace gate_at = GatePlace::after_sdpa;
  GateActivation gate_act = GateActivation::sigmoid;
  bool gate_bias = false;
  spec::Part<spec::Slot::pattern> pattern;
  std::optional<HeavyHitters> heavy;
  spec::Part<spec::Slot::position> position;
  spec::Part<spec::Slot::select> select;
  spec::Part<spec::Slot::norm> inner_norm;
  double dropout = 0;
  std::string kv_name;
  std::string kv_of;

  static constexpr auto fields() {
    using C = AttentionConfig;
    using spec::field;
    return std::tuple{
        field("n_heads", &C::n_heads, "query heads", {.min = 1, .required = true}),
        field("n_kv_heads", &C::n_kv_heads,
              "key/value heads, divides n_heads; 0 = n_heads (MHA), 1 = MQA", {.min = 0}),
        field("head_dim", &C::head_dim, "width of one head; 0 = width of the input / n_heads",
              {.min = 0}),
        field("v_head_dim", &C::v_head_dim, "width of one value head; 0 = head_dim", {.min = 0}),
        field("bias", &C::bias, "which projections have a bias"),
        field("groups", &C::groups,
              "groups of channels that the projections keep apart (grouped 1x1 convolutions); 1 = "
              "whole matrices"),
        field("clip", &C::clip, "projections are clamped to [-clip, clip]; 0 = they are not",
              {.min = 0}),
        field("qk_norm", &C::qk_norm, "norm of queries and keys"),
        field("qk_norm_over", &C::qk_norm_over, "what the qk_norm's statistics cover"),
        field("qk_norm_at", &C::qk_norm_at, "whether the qk_norm is before or after the rotation"),
        field("v_norm", &C::v_norm,
              "norm of each head's values, one weight for all (Gemma 3n: rms_norm, weight none)"),
        field("k_eq_v", &C::k_eq_v,
              "whether values are the projected keys, before norm and rotation, without a product of "
              "their own (Gemma 4)"),
        field("temperature", &C::temperature,
              "growth of the queries with their position (Llama 4, log-n attention)"),
        field("scale", &C::scale, "factor on the scores"),
        field("scale_value", &C::scale_value,
              "the number that `value` and `rsqrt_of` take, and where a learned factor begins"),
        field("scale_on", &C::scale_on, "what the factor multiplies"),
        field("softcap", &C::softcap, "c in c * tanh(s / c) on the scores; 0 = none", {.min = 0}),
        field("sinks", &C::sinks,
              "a learned logit per head that takes weight and gives nothing (gpt-oss)"),
        field("add_zero_attn", &C::add_zero_attn,
              "an additional key and value of zeros that every query sees"),
        field("gate", &C::gate, "a projection of the input through gate_act, as a factor"),
        field("gate_at", &C::gate_at, "on what: the heads' outputs, the values, or the output"),
        field("gate_act", &C::gate_act, "what its numbers pass through"),
        field("gate_bias", &C::gate_bias, "whether that projection has a bias"),
        field("pattern", &C::pattern, "who sees whom", {.part = "full"}),
        field("heavy", &C::heavy,
              "which keys stay as a text grows, by the weight they were given; null = all"),
        field("position", &C::position, "how order enters", {.part = "none"}),
        field("select", &C::select, "which keys a query attends to, by content; null = all"),
        field("inner_norm", &C::inner_norm,
              "norm of the heads' outputs side by side, before the last product (sub-LN)"),
        field("dropout", &C::dropout, "probability on the attention weights, in training",
              {.min = 0}),
        field("kv_name", &C::kv_name, "a name under which later layers use its keys and values"),
        field("kv_of", &C::kv_of,
              "the kv_name of an earlier layer whose keys and values it uses; \"\" = its own")};
  }
  static spec::Info info() {
    return {.summary = "Softmax attention with any number of key/value heads (MHA, GQA, MQA).",
            .paper =
                "Vaswani et al., arXiv:1706.03762; Shazeer, arXiv:1911.02150; Ainslie et al., "
                "arXiv:2305.13245",
            .year = 2017,
            .forms = {.recurrent = true},
            .any_width = true};
  }
  int64_t width_of_head(const spec::Scope& scope) const {
    return head_dim > 0 ? head_dim : n_heads > 0 ? scope.input_width() / n_heads : 0;
  }
  /// Width of one value head.
  int64_t value_dim() const { return v_head_dim > 0 ? v_head_dim : head_dim; }
  spec::Scope child_scope(spec::Scope scope, std::string_view name) const {
    const bool of_values = name == "inner_norm" || name == "v_norm";
    scope.width = of_values && v_head_dim > 0 ? v_head_dim : width_of_head(scope);
    if (name == "inner_norm") scope.width *= n_heads;
    scope.n_heads = n_heads;
    scope.d_model = scope.input_width();  // a scheme's vectors meet the same projections
    if (name == "position") scope.places = {.rotation = true, .score_bias = true};
    if (name == "select") return select_scope(scope, scope.d_model, position);
    return scope;
  }
  void complete(const spec::Scope& scope) override {
    require_heads_divide(head_dim, n_heads, scope.input_width(), scope);
    head_dim = width_of_head(scope);
    if (v_head_dim == head_dim) v_head_dim = 0;
    if (n_kv_heads == 0) n_kv_heads = n_heads;
  }
  void check(const spec::Scope& scope) const override;
  void check_behind(const std::vector<spec::Placed>& before,
                    const spec::Scope& scope) const override;
  bool shares() const override {
    return shares_keys() || (select && select.as<SelectConfig>().shares());
  }
  /// Whether other layers use its keys and values, or it theirs.
  bool shares_keys() const { return !kv_name.empty() || !kv_of.empty(); }
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
  std::vector<spec::StateDecl> state(const spec::Scope& scope) const override;
  double extra_flops(const spec::Scope& scope, int64_t context) const override;

  double score_scale(int64_t layer) const {
    return nn::score_scale(scale, scale_value, head_dim, layer);
  }
  /// The factor that is not on the queries.
  double logit_scale(int64_t layer) const {
    return scale_on == ScaleOn::query ? 1 : score_scale(layer);
  }
  /// Why sequences of up to `longest` tokens cannot be split over ranks (nn/sequence_split.h), and
  /// the remedy; "" where they can.
  std::string no_split_reason(int64_t longest) const;
  const PatternConfig& pattern_config() const { return pattern.as<PatternConfig>(); }
};

}  // namespace tessera::nn
