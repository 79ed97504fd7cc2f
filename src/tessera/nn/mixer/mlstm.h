// mLSTM: a matrix memory with exponential input gates and a normaliser, kept in range by a running
// maximum m.
//   i = cap(W_i x), f = cap(W_f x);  log f' = logsigmoid(f);  m_t = max(log f' + m_{t-1}, i_t)
//   C_t = e^{log f' + m_{t-1} - m_t} C_{t-1} + e^{i_t - m_t} (k_t / sqrt K) v_t^T, n_t likewise of
//   k h_t = C_t^T q_t / (max(|n_t . q_t|, e^{-m_t}) + eps) out = W_o( sigmoid(W_g x) *
//   LayerNorm_head(h) )
// Beck et al. 2024, arXiv:2405.04517; 7B layer 2025, arXiv:2503.13427. Forms: chunked (parallel
// when chunk >= T), recurrent.
#pragma once

#include "tessera/nn/mixer/recurrent_config.h"

namespace tessera::nn {

struct MlstmConfig final : RecurrentConfig {
  double gate_cap = 15;
  bool bias = false;
  double eps = 1e-6;
  double norm_eps = 1e-6;

  static constexpr auto fields() {
    using C = MlstmConfig;
    using spec::field;
    return std::tuple_cat(
        head_fields("K, key width of a head; 0 = d_model / (2 * n_heads)",
                    "V, value width of a head; 0 = d_model / n_heads"),
        std::tuple{
            field("gate_cap", &C::gate_cap,
                  "c in c * tanh(x / c) on the input and forget gates; 0 = none", {.min = 0}),
            field("bias", &C::bias, "biases of the projections and of the norm"),
            field("eps", &C::eps, "added to the denominator", {.min = 0}),
            field("norm_eps", &C::norm_eps, "added to the variance of a head's output",
                  {.min = 0})});
  }
  static spec::Info info() {
    return {.summary = "A matrix memory with exponential gates and a normaliser (xLSTM).",
            .paper =
                "Beck et al.: xLSTM: Extended Long Short-Term Memory, arXiv:2405.04517; Beck et "
                "al.: xLSTM 7B, arXiv:2503.13427",
            .year = 2024,
            .forms = {.parallel = true, .chunked = true, .recurrent = true}};
  }
  void complete(const spec::Scope& scope) override;
  void check(const spec::Scope& scope) const override { require_causal(scope, "mlstm"); }
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
  std::vector<spec::StateDecl> state(const spec::Scope& scope) const override;
};

}  // namespace tessera::nn
