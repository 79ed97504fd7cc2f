// RWKV-6 (Finch) time mixing: RWKV-5 whose mixing with the token before and whose decay follow the
// token.
//   d = x_{t-1} - x_t;  z = tanh(W_down (x + d mix_x));  x_j = x + d (mix_j + W_up_j z_j), j = w,
//   k, v, r, g;  w_t = exp(-exp(decay + D_up tanh(D_down x_w))) y_t = (S_{t-1} + diag(u) k_t
//   v_t^T)^T r_t;  S_t = diag(w_t) S_{t-1} + k_t v_t^T out = W_o( GroupNorm_heads(y) * silu(g) )
// Peng et al. 2024, arXiv:2404.05892. Forms: chunked, recurrent.
#pragma once

#include "tessera/nn/mixer/linear/recurrent_config.h"

namespace tessera::nn {

struct Rwkv6Config final : RecurrentConfig {
  int64_t mix_rank = 32;
  int64_t decay_rank = 64;
  double norm_eps = 64e-5;

  static constexpr auto fields() {
    using C = Rwkv6Config;
    using spec::field;
    return std::tuple_cat(
        head_fields("K, key width of a head; 0 = d_model / n_heads",
                    "V, value width of a head; 0 = d_model / n_heads"),
        std::tuple{
            field("mix_rank", &C::mix_rank, "width of each mix's inner projection", {.min = 1}),
            field("decay_rank", &C::decay_rank, "width of the decay's inner projection",
                  {.min = 1}),
            field("norm_eps", &C::norm_eps, "added to the variance of a head's output",
                  {.min = 0})});
  }
  static spec::Info info() {
    return {.summary = "RWKV-6 time mixing: decays and token mixing that follow the token.",
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
  void check(const spec::Scope& scope) const override { require_causal(scope, "rwkv6"); }
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
  std::vector<spec::StateDecl> state(const spec::Scope& scope) const override;
};

}  // namespace tessera::nn
