// Retention: linear attention whose state fades at a fixed rate per head, from fast to slow.
//   q = rot(W_q x), k = rot(K^{-1/2} W_k x), v = W_v x;  gamma_h = 1 - 2^{-5-h}
//   S_t = gamma S_{t-1} + k_t v_t^T,  y_t = S_t^T q_t;  out = W_o( silu(W_g x) * RMSNorm_head(y) )
// or, learned, gamma_h = sigmoid(a_h).
// Sun et al. 2023, arXiv:2307.08621. Forms: chunked (parallel when chunk >= T), recurrent. The norm
// undoes whatever `normalise` divides a row by, but for eps; "scores" needs all of a row's scores,
// which no state of fixed size holds, and is refused with one.
#pragma once

#include "tessera/nn/mixer/linear/recurrent_config.h"

namespace tessera::nn {

enum class RetentionAngles {
  linear,  // theta^{-linspace(0, 1, K/2)}, pairs (2m, 2m + 1): torchscale
  rope,    // theta^{-2m/K}, pairs (m, m + K/2): flash-linear-attention
  none,
};
enum class RetentionDecay {
  fixed,
  learned,  // gamma_h = sigmoid(a_h), which begins as the fixed one
};
enum class RetentionNormalise {
  none,
  decays,  // y_t / sqrt(sum_{j <= t} gamma^{t-j}): the published recurrence
  scores,  // and then by max(1, sum_j of the row's |scores|), held constant: its parallel form
};

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::RetentionDecay> {
  using D = nn::RetentionDecay;
  static constexpr std::array names{std::pair{D::fixed, "fixed"}, std::pair{D::learned, "learned"}};
};
template <>
struct tessera::spec::EnumNames<tessera::nn::RetentionNormalise> {
  using N = nn::RetentionNormalise;
  static constexpr std::array names{std::pair{N::none, "none"}, std::pair{N::decays, "decays"},
                                    std::pair{N::scores, "scores"}};
};
template <>
struct tessera::spec::EnumNames<tessera::nn::RetentionAngles> {
  using A = nn::RetentionAngles;
  static constexpr std::array names{std::pair{A::linear, "linear"}, std::pair{A::rope, "rope"},
                                    std::pair{A::none, "none"}};
};

namespace tessera::nn {

struct RetentionConfig final : RecurrentConfig {
  RetentionAngles angles = RetentionAngles::linear;
  double theta = 10000;
  double decay_offset = 5;
  RetentionDecay decay = RetentionDecay::fixed;
  RetentionNormalise normalise = RetentionNormalise::none;
  bool norm_weight = false;
  double norm_eps = 1e-6;

  static constexpr auto fields() {
    using C = RetentionConfig;
    using spec::field;
    return std::tuple_cat(
        head_fields("K, key width of a head; 0 = d_model / n_heads",
                    "V, value width of a head; 0 = 2 * d_model / n_heads"),
        std::tuple{
            field("angles", &C::angles, "rotation of q and k"),
            field("theta", &C::theta, "base of the angles", {.min = 1}),
            field("decay_offset", &C::decay_offset,
                  "head h keeps 1 - 2^-(decay_offset + h) of its state per token", {.min = 0.5}),
            field("decay", &C::decay, "whether that is where a learned number begins"),
            field("normalise", &C::normalise,
                  "what a row is divided by before the norm: decays = the root of its decays' sum, "
                  "scores = also the sum of its scores' magnitudes, without a state"),
            field("norm_weight", &C::norm_weight, "whether the heads' norm has a weight"),
            field("norm_eps", &C::norm_eps, "added to its mean square", {.min = 0})});
  }
  static spec::Info info() {
    return {.summary = "Linear attention with rotated keys and a fixed decay per head (RetNet).",
            .paper =
                "Sun et al.: Retentive Network: A Successor to Transformer for Large Language "
                "Models, arXiv:2307.08621",
            .year = 2023,
            .forms = {.parallel = true, .chunked = true, .recurrent = true, .recorded = true}};
  }
  /// ln gamma_h of fixed decays.
  std::vector<double> log_decays() const;

  std::string not_recorded_reason() const override {
    return normalise != RetentionNormalise::none ? "its divisors are computed from positions" : "";
  }
  void complete(const spec::Scope& scope) override {
    if (key_dim == 0) key_dim = head_width(scope);
    if (value_dim == 0) value_dim = 2 * head_width(scope);
  }
  void check(const spec::Scope& scope) const override;
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
  std::string no_state_reason() const override;
  double extra_flops(const spec::Scope& scope, int64_t context) const override;
};

}  // namespace tessera::nn
