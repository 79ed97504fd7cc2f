// Multi-head latent attention (MLA): keys and values are read from one short latent per token, and
// a few rotary channels shared by all heads carry the position, so that a cache of kv_lora_rank +
// qk_rope_head_dim numbers per token serves every head.
//   q = W_qb norm(W_qa x) -> (q_n, q_r) per head;  (c, r) = W_kva x;  c <- norm(c)
//   where they are scaled, by factors of both normed latents (LongCat-Flash, arXiv:2509.01322)
//   k_n = W_kb c, v = W_vb c per head;  q_r, r rotated;  s_ij = scale (q_n,i . k_n,j + q_r,i . r_j)
// with a gate the heads' outputs are multiplied by sigmoid(W_g x) (output_gate.h; Ling 3), or
// by a sigmoid of what the queries are projected from. q_latent normed_and_raw: q = W_qb [norm(a);
// a], a = W_qa x (A.X-K2). rope_norm: r is normed before it is rotated (dots 3).
// DeepSeek-AI 2024, arXiv:2405.04434, sec. 2.1. Golden: attention G3.
//
// Forms: training expands keys and values; inference absorbs W_kb into the query and W_vb into the
// output, so that nothing but the latent is kept or read: s_ij = scale (W_kb^T q_n,i . c_j + ..),
// o_i = W_vb sum_j p_ij c_j. A prompt is absorbed too, which costs (2 c + r) / (n + r + v) times
// the scores' work, because a row's bits may not depend on how a prompt was split into calls.
// What a position adds to the scores it adds to those of the expanded queries and keys, in both
// forms; where it reads keys, they are expanded for it. Under a window the latents in it are kept.
// `select` chooses the keys that a query attends to (DeepSeek sparse attention); it reads the
// normed query latent.
#pragma once

#include <algorithm>

#include "tessera/nn/mixer/attention/output_gate.h"
#include "tessera/nn/mixer/attention/query_temperature.h"
#include "tessera/nn/pattern/pattern_config.h"
#include "tessera/nn/position/position_config.h"
#include "tessera/nn/select/select_config.h"

namespace tessera::nn {

enum class QueryLatent { normed, normed_and_raw };
enum class LatentGateSource { input, query_latent };

enum class LatentScale {
  rsqrt_head_dim,  // (qk_nope_head_dim + qk_rope_head_dim)^-1/2
  yarn_mscale,     // that times m^2, m = 0.1 mscale_all_dim ln(factor) + 1 of the yarn scaling
  value,           // scale_value itself
};

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::LatentScale> {
  using S = nn::LatentScale;
  static constexpr std::array names{std::pair{S::rsqrt_head_dim, "rsqrt_head_dim"},
                                    std::pair{S::yarn_mscale, "yarn_mscale"},
                                    std::pair{S::value, "value"}};
};

template <>
struct tessera::spec::EnumNames<tessera::nn::QueryLatent> {
  using Q = nn::QueryLatent;
  static constexpr std::array names{std::pair{Q::normed, "normed"},
                                    std::pair{Q::normed_and_raw, "normed_and_raw"}};
};

template <>
struct tessera::spec::EnumNames<tessera::nn::LatentGateSource> {
  using G = nn::LatentGateSource;
  static constexpr std::array names{std::pair{G::input, "input"},
                                    std::pair{G::query_latent, "query_latent"}};
};

namespace tessera::nn {

struct LatentAttentionConfig final : spec::Config, spec::ReadsEarlierParts, OutputGateConfig {
  int64_t n_heads = 0;
  int64_t q_lora_rank = 0;
  int64_t kv_lora_rank = 0;
  int64_t qk_nope_head_dim = 0;
  int64_t qk_rope_head_dim = 0;
  int64_t v_head_dim = 0;
  spec::Part<spec::Slot::norm> latent_norm;
  double q_latent_scale = 1;
  double kv_latent_scale = 1;
  QueryLatent q_latent = QueryLatent::normed;
  spec::Part<spec::Slot::norm> rope_norm;
  bool bias = false;
  LatentGateSource gate_of = LatentGateSource::input;
  QueryTemperature temperature;
  LatentScale scale = LatentScale::rsqrt_head_dim;
  double scale_value = 1;
  bool sinks = false;
  spec::Part<spec::Slot::pattern> pattern;
  spec::Part<spec::Slot::position> position;
  spec::Part<spec::Slot::select> select;
  double dropout = 0;

  static constexpr auto fields() {
    using C = LatentAttentionConfig;
    using spec::field;
    return std::tuple{
        field("n_heads", &C::n_heads, "heads", {.min = 1, .required = true}),
        field("q_lora_rank", &C::q_lora_rank, "width of the query latent; 0 = projected directly",
              {.min = 0}),
        field("kv_lora_rank", &C::kv_lora_rank, "width of the latent that is cached",
              {.min = 1, .required = true}),
        field("qk_nope_head_dim", &C::qk_nope_head_dim, "channels of a head without position",
              {.min = 1, .required = true}),
        field("qk_rope_head_dim", &C::qk_rope_head_dim,
              "channels of a head that `position` rotates; their key is shared by all heads",
              {.min = 0, .required = true}),
        field("v_head_dim", &C::v_head_dim, "channels of a value; 0 = qk_nope_head_dim",
              {.min = 0}),
        field("latent_norm", &C::latent_norm, "norm of both latents; null = none",
              {.part = "rms_norm"}),
        field("q_latent_scale", &C::q_latent_scale, "factor on the normed query latent"),
        field("kv_latent_scale", &C::kv_latent_scale, "factor on the normed latent that is cached"),
        field("q_latent", &C::q_latent,
              "what q_b reads: the normed query latent, or this and the latent before its norm"),
        field("rope_norm", &C::rope_norm,
              "norm of the rotary key that all heads share, before its rotation; null = none"),
        field("bias", &C::bias, "bias of the projections to the latents and of the output"),
        field("gate", &C::gate,
              "a projection of the input through a sigmoid, as a factor on the heads' outputs"),
        field("gate_of", &C::gate_of,
              "what the gate is projected from: the mixer's input, or what q_b reads"),
        field("temperature", &C::temperature,
              "growth of the queries with their position (Mistral 4)"),
        field("scale", &C::scale, "factor on the scores"),
        field("scale_value", &C::scale_value, "the number that `value` takes"),
        field("sinks", &C::sinks,
              "a learned logit per head that takes weight and gives nothing (gpt-oss, Hy4)"),
        field("pattern", &C::pattern, "who sees whom", {.part = "full"}),
        field("position", &C::position,
              "how order enters; a rotation turns the qk_rope_head_dim channels", {.part = "none"}),
        field("select", &C::select, "which keys a query attends to, by content; null = all"),
        field("dropout", &C::dropout, "probability on the attention weights, in training",
              {.min = 0, .below = 1})};
  }
  static spec::Json example(const spec::Scope& scope, int64_t) {
    return {{"kv_lora_rank", std::max<int64_t>(1, scope.d_model / 2)},
            {"qk_nope_head_dim", 32},
            {"qk_rope_head_dim", 32},
            {"position", "rope"}};
  }
  static spec::Info info() {
    return {.summary = "Attention whose keys and values are read from one short latent per token.",
            .paper = "DeepSeek-AI: DeepSeek-V2, arXiv:2405.04434",
            .year = 2024,
            .forms = {.recurrent = true, .recorded = true}};
  }
  int64_t head_dim() const { return qk_nope_head_dim + qk_rope_head_dim; }
  /// Channels that queries are projected from.
  int64_t query_width(const spec::Scope& scope) const {
    if (q_lora_rank == 0) return scope.d_model;
    return q_latent == QueryLatent::normed ? q_lora_rank : 2 * q_lora_rank;
  }
  /// Numbers kept per token.
  int64_t entry() const { return kv_lora_rank + qk_rope_head_dim; }

  spec::Scope child_scope(spec::Scope scope, std::string_view name) const {
    if (name == "latent_norm") scope.width = kv_lora_rank;
    if (name == "rope_norm") scope.width = qk_rope_head_dim;
    if (name == "position") {
      scope.width = head_dim();
      scope.rotated = qk_rope_head_dim;
      scope.n_heads = n_heads;
      scope.places = {.rotation = true, .score_bias = true};
    }
    if (name == "select") {
      scope.n_heads = n_heads;
      return select_scope(scope, q_lora_rank > 0 ? q_lora_rank : scope.d_model, position);
    }
    return scope;
  }
  void complete(const spec::Scope&) override {
    if (v_head_dim == 0) v_head_dim = qk_nope_head_dim;
  }
  void check(const spec::Scope& scope) const override;
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
  std::vector<spec::StateDecl> state(const spec::Scope& scope) const override;
  double extra_flops(const spec::Scope& scope, int64_t context) const override;
  std::string not_recorded_reason() const override;
  void check_behind(const std::vector<spec::Placed>& before,
                    const spec::Scope& scope) const override;
  bool shares() const override { return select && select.as<SelectConfig>().shares(); }

  /// The factor on the scores.
  double score_scale() const;
  const PatternConfig& pattern_config() const { return pattern.as<PatternConfig>(); }
};

}  // namespace tessera::nn
