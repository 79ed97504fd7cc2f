// DeltaNet: a state that overwrites what a key held, instead of adding to it.
//   q, k = unit(silu(conv(W x))), v = silu(conv(W x)), beta = sigmoid(W_b x)
//   S_t = S_{t-1} + beta_t k_t (v_t - S_{t-1}^T k_t)^T,  o_t = K^{-1/2} S_t^T q_t
//   out = W_o( RMSNorm_head(o) ), times silu(W_g x) where there is a gate
// Yang, Wang, Zhang, Shen, Kim 2024, arXiv:2406.06484. Forms: chunked (WY), recurrent.
#pragma once

#include "tessera/nn/mixer/linear/recurrent_config.h"

namespace tessera::nn {

struct DeltaNetConfig final : RecurrentConfig {
  int64_t d_conv = 4;
  bool gate = false;
  bool negative_eigenvalues = false;
  double norm_eps = 1e-5;

  static constexpr auto fields() {
    using C = DeltaNetConfig;
    using spec::field;
    return std::tuple_cat(
        head_fields("K, key width of a head; 0 = d_model / n_heads",
                    "V, value width of a head; 0 = d_model / n_heads"),
        std::tuple{
            field("d_conv", &C::d_conv, "taps of the short convolution of q, k, v; 0 = none",
                  {.min = 0}),
            field("gate", &C::gate, "multiply the output by silu(W_g x)"),
            field("negative_eigenvalues", &C::negative_eigenvalues, "beta in (0, 2), not (0, 1)"),
            field("norm_eps", &C::norm_eps, "added to the mean square of a head's output",
                  {.min = 0})});
  }
  static spec::Info info() {
    return {.summary = "Linear attention that overwrites by the delta rule instead of adding.",
            .paper =
                "Yang, Wang, Zhang, Shen, Kim: Parallelizing Linear Transformers with the Delta "
                "Rule over Sequence Length, arXiv:2406.06484",
            .year = 2024,
            .forms = {.parallel = true, .chunked = true, .recurrent = true, .recorded = true}};
  }
  void complete(const spec::Scope& scope) override {
    if (key_dim == 0) key_dim = head_width(scope);
    if (value_dim == 0) value_dim = head_width(scope);
  }
  void check(const spec::Scope& scope) const override { require_causal(scope, "delta_net"); }
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
  std::vector<spec::StateDecl> state(const spec::Scope& scope) const override;
  double extra_flops(const spec::Scope& scope, int64_t context) const override;
};

}  // namespace tessera::nn
