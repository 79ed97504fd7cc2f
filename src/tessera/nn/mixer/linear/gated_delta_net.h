// Gated DeltaNet: the delta rule on a state that also forgets, one number per head and token.
//   q, k = unit(silu(conv(W x))), v = silu(conv(W x)), beta = sigmoid(W_b x)
//   ln alpha_t = -exp(a_log) softplus(W_a x + dt_bias);  P = alpha_t S_{t-1}
//   S_t = P + beta_t k_t (v_t - P^T k_t)^T,  o_t = K^{-1/2} S_t^T q_t
//   out = W_o( RMSNorm_head(o) * act(W_g x) )
// Yang, Kautz, Hatamizadeh 2024, arXiv:2412.06464. Forms: chunked (WY), recurrent.
#pragma once

#include "tessera/nn/mixer/linear/recurrent_config.h"

namespace tessera::nn {

/// act of the output's gate.
enum class DeltaGate { silu, sigmoid };

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::DeltaGate> {
  static constexpr std::array names{std::pair{nn::DeltaGate::silu, "silu"},
                                    std::pair{nn::DeltaGate::sigmoid, "sigmoid"}};
};

namespace tessera::nn {

struct GatedDeltaNetConfig final : RecurrentConfig {
  int64_t n_key_heads = 0;
  int64_t d_conv = 4;
  bool gate = true;
  DeltaGate gate_act = DeltaGate::silu;
  bool negative_eigenvalues = false;
  double norm_eps = 1e-5;

  static constexpr auto fields() {
    using C = GatedDeltaNetConfig;
    using spec::field;
    return std::tuple_cat(
        head_fields("K, key width of a head; 0 = d_model / n_heads",
                    "V, value width of a head; 0 = 2 * key_dim"),
        std::tuple{
            field("n_key_heads", &C::n_key_heads,
                  "heads of q and k, divides n_heads, the heads of v and of the state; 0 = n_heads",
                  {.min = 0}),
            field("d_conv", &C::d_conv, "taps of the short convolution of q, k, v; 0 = none",
                  {.min = 0}),
            field("gate", &C::gate, "multiply the output by act(W_g x)"),
            field("gate_act", &C::gate_act, "act of that gate"),
            field("negative_eigenvalues", &C::negative_eigenvalues, "beta in (0, 2), not (0, 1)"),
            field("norm_eps", &C::norm_eps, "added to the mean square of a head's output",
                  {.min = 0})});
  }
  static spec::Info info() {
    return {.summary = "The delta rule on a state that decays by one number per head and token.",
            .paper =
                "Yang, Kautz, Hatamizadeh: Gated Delta Networks: Improving Mamba2 with Delta "
                "Rule, arXiv:2412.06464",
            .year = 2024,
            .forms = {.parallel = true, .chunked = true, .recurrent = true, .recorded = true}};
  }
  void complete(const spec::Scope& scope) override {
    if (key_dim == 0) key_dim = head_width(scope);
    if (value_dim == 0) value_dim = 2 * key_dim;
    if (n_key_heads == 0) n_key_heads = n_heads;
  }
  void check(const spec::Scope& scope) const override;
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
  std::vector<spec::StateDecl> state(const spec::Scope& scope) const override;
  double extra_flops(const spec::Scope& scope, int64_t context) const override;
};

}  // namespace tessera::nn
