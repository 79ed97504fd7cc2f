// RWKV-7 (Goose) time mixing: a generalised delta rule with decays and rates per channel.
//   x_j = x_t + (x_{t-1} - x_t) mix_j, j = r, w, k, v, a, g;  r, k, v = W x_j
//   w_t = exp(-e^{-1/2} sigmoid(decay(x_w)));  a = sigmoid(rate(x_a));  kappa = unit(k key_scale)
//   v = v + (v_first - v) sigmoid(value_mix(x_v)) after the first layer, whose v is v_first
//   k = k (1 + (a - 1) key_rate)
//   S_t = diag(w_t) S_{t-1} - (a kappa) (S_{t-1}^T kappa)^T + k v^T,  y_t = S_t^T r_t
//   y = GroupNorm_heads(y) + (r . (bonus o k)) v;  out = W_o( y * gate(x_g) )
// where decay, rate and value_mix are U D x + b (a tanh between for decay), gate = U sigmoid(D x).
// Peng et al. 2025, arXiv:2503.14456. Forms: chunked (WY), recurrent.
#pragma once

#include "tessera/nn/mixer/linear/recurrent_config.h"
#include "tessera/spec/placed.h"

namespace tessera::nn {

struct Rwkv7Config final : RecurrentConfig, spec::ReadsEarlierParts {
  int64_t decay_rank = 0;
  int64_t rate_rank = 0;
  int64_t value_rank = 0;
  int64_t gate_rank = 0;
  std::optional<bool> value_residual;
  double norm_eps = 64e-5;

  static constexpr auto fields() {
    using C = Rwkv7Config;
    using spec::field;
    return std::tuple_cat(
        head_fields("K, key width of a head; 0 = d_model / n_heads",
                    "V, value width of a head; 0 = d_model / n_heads"),
        std::tuple{
            field("decay_rank", &C::decay_rank,
                  "width of the decay's inner projection; 0 = 2.5 sqrt(d_model), rounded to 32s",
                  {.min = 0}),
            field("rate_rank", &C::rate_rank, "the same of the rate a; 0 as above", {.min = 0}),
            field("value_rank", &C::value_rank,
                  "the same of the value's mix; 0 = 1.7 sqrt(d_model), rounded to 32s", {.min = 0}),
            field("gate_rank", &C::gate_rank,
                  "the same of the gate; 0 = 5 sqrt(d_model), rounded to 32s", {.min = 0}),
            field("value_residual", &C::value_residual,
                  "mix v with that of the first rwkv7 mixer; null = in all after it"),
            field("norm_eps", &C::norm_eps, "added to the variance of a head's output",
                  {.min = 0})});
  }
  static spec::Info info() {
    return {.summary = "RWKV-7 time mixing: a delta rule with decays and rates per channel.",
            .paper =
                "Peng et al.: RWKV-7 \"Goose\" with Expressive Dynamic State Evolution, "
                "arXiv:2503.14456",
            .year = 2025,
            .forms = {.parallel = true, .chunked = true, .recurrent = true, .recorded = true}};
  }
  bool mixes_value(const spec::Scope& scope) const {
    return value_residual.value_or(scope.earlier > 0);
  }
  void complete(const spec::Scope& scope) override;
  void check(const spec::Scope& scope) const override;
  void check_behind(const std::vector<spec::Placed>& before,
                    const spec::Scope& scope) const override;
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
  std::vector<spec::StateDecl> state(const spec::Scope& scope) const override;
  double extra_flops(const spec::Scope& scope, int64_t context) const override;
};

}  // namespace tessera::nn
