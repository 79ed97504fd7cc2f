// RWKV-5 (Eagle) time mixing: linear attention with a fixed decay per channel and a bonus for the
// present token, on inputs mixed with the token before.
//   m(x, mu)_t = mu x_t + (1 - mu) x_{t-1};  r, k, v, g = W m(x, mu);  w = exp(-exp(decay))
//   y_t = (S_{t-1} + diag(u) k_t v_t^T)^T r_t;  S_t = diag(w) S_{t-1} + k_t v_t^T
//   out = W_o( GroupNorm_heads(y) * silu(g) ), in version 5.1 without the gate
// Peng et al. 2024, arXiv:2404.05892. The published code divides y by 8 before a norm with eps
// 1e-5: the same numbers as norm_eps 64e-5 here. Forms: chunked, recurrent.
#pragma once

#include "tessera/nn/mixer/linear/recurrent_config.h"

namespace tessera::nn {

struct Rwkv5Config final : RecurrentConfig {
  bool gate = true;
  double norm_eps = 64e-5;

  static constexpr auto fields() {
    using C = Rwkv5Config;
    using spec::field;
    return std::tuple_cat(
        head_fields("K, key width of a head; 0 = d_model / n_heads",
                    "V, value width of a head; 0 = d_model / n_heads"),
        std::tuple{field("gate", &C::gate, "multiply the output by silu(g)"),
                   field("norm_eps", &C::norm_eps, "added to the variance of a head's output",
                         {.min = 0})});
  }
  static spec::Info info() {
    return {.summary = "RWKV-5 time mixing: fixed decays per channel and a bonus for the present.",
            .paper =
                "Peng et al.: Eagle and Finch: RWKV with Matrix-Valued States and Dynamic "
                "Recurrence, arXiv:2404.05892",
            .year = 2024,
            .forms = {.parallel = true, .chunked = true, .recurrent = true, .recorded = true}};
  }
  void complete(const spec::Scope& scope) override {
    if (key_dim == 0) key_dim = head_width(scope);
    if (value_dim == 0) value_dim = head_width(scope);
  }
  void check(const spec::Scope& scope) const override { require_causal(scope, "rwkv5"); }
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
  std::vector<spec::StateDecl> state(const spec::Scope& scope) const override;
};

}  // namespace tessera::nn
