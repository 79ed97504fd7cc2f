// Kimi delta attention: Gated DeltaNet whose state forgets per key channel.
//   q, k = unit(silu(conv(W x))), v = silu(conv(W x)), beta = sigmoid(W_b x)
//   ln a_t = -exp(a_log) softplus(W_2 W_1 x + dt_bias);  P = diag(a_t) S_{t-1}
//   bounded: ln a_t = lower_bound sigmoid(exp(a_log) (W_2 W_1 x + dt_bias))
//   S_t = P + beta_t k_t (v_t - P^T k_t)^T,  o_t = K^{-1/2} S_t^T q_t
//   out = W_o( RMSNorm_head(o) * sigmoid(W_4 W_3 x + b) )
// With full_rank W_2 W_1 and W_4 W_3 are one matrix each.
// Kimi Team 2025, arXiv:2510.26692. Forms: chunked (WY), recurrent.
#pragma once

#include "tessera/nn/mixer/linear/recurrent_config.h"

namespace tessera::nn {

struct KdaConfig final : RecurrentConfig {
  int64_t d_conv = 4;
  int64_t rank = 0;
  bool full_rank = false;
  double lower_bound = 0;
  bool gate_bias = false;
  bool negative_eigenvalues = false;
  double norm_eps = 1e-5;

  static constexpr auto fields() {
    using C = KdaConfig;
    using spec::field;
    return std::tuple_cat(
        head_fields("K, key width of a head; 0 = d_model / n_heads",
                    "V, value width of a head; 0 = d_model / n_heads"),
        std::tuple{
            field("d_conv", &C::d_conv, "taps of the short convolution of q, k, v; 0 = none",
                  {.min = 0}),
            field("rank", &C::rank,
                  "width between the two projections of the decay and of the gate; 0 = value_dim",
                  {.min = 0}),
            field("full_rank", &C::full_rank,
                  "whether decay and gate have one projection each, without a rank (Ling 3)"),
            field("lower_bound", &C::lower_bound,
                  "least ln a of a token, below 0: bounded decay; 0 = unbounded", {.max = 0}),
            field("gate_bias", &C::gate_bias, "bias of the gate's last projection"),
            field("negative_eigenvalues", &C::negative_eigenvalues, "beta in (0, 2), not (0, 1)"),
            field("norm_eps", &C::norm_eps, "added to the mean square of a head's output",
                  {.min = 0})});
  }
  static spec::Info info() {
    return {.summary = "The delta rule on a state that decays per key channel (Kimi Linear).",
            .paper =
                "Kimi Team: Kimi Linear: An Expressive, Efficient Attention Architecture, "
                "arXiv:2510.26692",
            .year = 2025,
            .forms = {.parallel = true, .chunked = true, .recurrent = true, .recorded = true}};
  }
  void complete(const spec::Scope& scope) override {
    if (key_dim == 0) key_dim = head_width(scope);
    if (value_dim == 0) value_dim = head_width(scope);
    if (rank == 0 && !full_rank) rank = value_dim;
  }
  void check(const spec::Scope& scope) const override;
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
  std::vector<spec::StateDecl> state(const spec::Scope& scope) const override;
  double extra_flops(const spec::Scope& scope, int64_t context) const override;
};

}  // namespace tessera::nn
