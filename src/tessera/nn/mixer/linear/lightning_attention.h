// Lightning attention: linear attention with a fixed decay per head and layer.
//   [q, k, v] = silu(W x);  S_t = e^{-s} S_{t-1} + k_t v_t^T,  o_t = tau S_t^T q_t
//   out = W_o( sigmoid(W_g x) * RMSNorm(o) ), the norm over all heads together
// Qin et al. 2024, arXiv:2401.04658; MiniMax 2025, arXiv:2501.08313. Forms: chunked (parallel when
// chunk >= T), recurrent.
#pragma once

#include "tessera/nn/mixer/linear/recurrent_config.h"

namespace tessera::nn {

/// Slopes s of head h of H in layer l of L, and the factor tau on the output.
enum class LightningSlopes {
  minimax,  // 2^{-8 (h + 1) / H} (1 - l / (L - 1 + 1e-5) + 1e-5), tau = 1
  fla,      // (8 / H) (1 - l / L) h, tau = K^{-1/2}
};

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::LightningSlopes> {
  using S = nn::LightningSlopes;
  static constexpr std::array names{std::pair{S::minimax, "minimax"}, std::pair{S::fla, "fla"}};
};

namespace tessera::nn {

struct LightningAttentionConfig final : RecurrentConfig {
  LightningSlopes slopes = LightningSlopes::minimax;
  double norm_eps = 1e-6;

  static constexpr auto fields() {
    using C = LightningAttentionConfig;
    using spec::field;
    return std::tuple_cat(head_fields("K, key width of a head; 0 = d_model / n_heads",
                                      "V, value width of a head; 0 = d_model / n_heads"),
                          std::tuple{field("slopes", &C::slopes, "the decays of heads and layers"),
                                     field("norm_eps", &C::norm_eps,
                                           "added to the mean square of the output", {.min = 0})});
  }
  static spec::Info info() {
    return {.summary = "Linear attention with a fixed decay per head and layer (MiniMax-01).",
            .paper =
                "Qin et al.: Lightning Attention-2, arXiv:2401.04658; MiniMax: MiniMax-01, "
                "arXiv:2501.08313",
            .year = 2024,
            .forms = {.parallel = true, .chunked = true, .recurrent = true, .recorded = true}};
  }
  /// -s of every head.
  std::vector<double> log_decays(const spec::Scope& scope) const;

  void complete(const spec::Scope& scope) override {
    if (key_dim == 0) key_dim = head_width(scope);
    if (value_dim == 0) value_dim = head_width(scope);
  }
  void check(const spec::Scope& scope) const override {
    require_causal(scope, "lightning_attention");
  }
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
};

}  // namespace tessera::nn
