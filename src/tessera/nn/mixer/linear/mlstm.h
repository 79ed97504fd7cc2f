// mLSTM: a matrix memory with exponential input gates and a normaliser, kept in range by a running
// maximum m.
//   log f' = logsigmoid(f);  m_t = max(log f' + m_{t-1}, i_t)
//   d_t = e^{log f' + m_{t-1} - m_t}, w_t = e^{i_t - m_t}
//   C_t = d_t C_{t-1} + w_t (k_t / sqrt K) v_t^T, n_t = d_t n_{t-1} + w_t k_t / sqrt K
//   h_t = LayerNorm_head(C_t^T q_t / (max(|n_t . q_t|, e^{-m_t}) + eps))
// Two layers have this cell. As in the 7B model:
//   q, k, v = W x;  i, f = cap(W x);  out = W_o(sigmoid(W_g x) * h)
// With `up_projection`, the block of the smaller models, which has no feed-forward layer:
//   x', z = W_up x;  c = silu(conv(x'));  q, k = W c, v = W x' (block-diagonal);
//   i, f = W [q, k, v];  out = W_o(silu(z) * (h + skip * c))
// Beck et al. 2024, arXiv:2405.04517; 7B layer 2025, arXiv:2503.13427. Forms: chunked (parallel
// when chunk >= T), recurrent.
#pragma once

#include <optional>

#include "tessera/nn/mixer/linear/recurrent_config.h"

namespace tessera::nn {

struct MlstmUpProjection {
  int64_t d_inner = 0;
  int64_t d_conv = 4;
  int64_t block = 4;

  static constexpr auto fields() {
    using U = MlstmUpProjection;
    using spec::field;
    return std::tuple{
        field("d_inner", &U::d_inner, "width inside; 0 = 2 * d_model", {.min = 0}),
        field("d_conv", &U::d_conv, "taps of the convolution before q and k; 0 = none", {.min = 0}),
        field("block", &U::block, "width of the blocks of q, k and v; divides d_inner",
              {.min = 1})};
  }
};

struct MlstmConfig final : RecurrentConfig {
  std::optional<MlstmUpProjection> up_projection;
  std::optional<double> gate_cap;
  bool bias = false;
  double eps = 1e-6;
  std::optional<double> norm_eps;

  static constexpr auto fields() {
    using C = MlstmConfig;
    using spec::field;
    return std::tuple_cat(
        head_fields("K, key width of a head; 0 = d_model / (2 * n_heads), or d_inner / n_heads",
                    "V, value width of a head; 0 = d_model / n_heads, or d_inner / n_heads"),
        std::tuple{
            field("up_projection", &C::up_projection,
                  "the block around the cell: twice the width, a convolution and a gate; null = "
                  "the layer of xLSTM 7B"),
            field("gate_cap", &C::gate_cap,
                  "c in c * tanh(x / c) on the input and forget gates, 0 = none; null = 15, none "
                  "with an up-projection",
                  {.min = 0}),
            field("bias", &C::bias,
                  "biases of the projections and, without an up-projection, of the norm"),
            field("eps", &C::eps, "added to the denominator", {.min = 0}),
            field("norm_eps", &C::norm_eps,
                  "added to the variance of a head's output; null = 1e-6, 1e-5 with an "
                  "up-projection",
                  {.min = 0})});
  }
  static spec::Info info() {
    return {.summary = "A matrix memory with exponential gates and a normaliser (xLSTM).",
            .paper =
                "Beck et al.: xLSTM: Extended Long Short-Term Memory, arXiv:2405.04517; Beck et "
                "al.: xLSTM 7B, arXiv:2503.13427",
            .year = 2024,
            .forms = {.parallel = true, .chunked = true, .recurrent = true, .recorded = true}};
  }
  void complete(const spec::Scope& scope) override;
  void check(const spec::Scope& scope) const override;
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
  std::vector<spec::StateDecl> state(const spec::Scope& scope) const override;
  double extra_flops(const spec::Scope& scope, int64_t context) const override;

 private:
  void up_projected_params(spec::ParamList& list, const spec::Scope& scope) const;
};

}  // namespace tessera::nn
