// Mamba (selective state space): a causal short convolution, then a diagonal linear recurrence per
// channel whose step, input and output depend on the token.
//   [x, z] = W_in u;  x = silu(conv(x));  [dt, B, C] = W_select x, each normalised if asked for
//   delta = softplus(W_dt dt + b_dt);  h_t = exp(delta_t A) h_{t-1} + delta_t x_t B_t^T
//   y_t = h_t C_t + D x_t;  out = W_out (y * silu(z)),   A = -exp(a_log)
// Gu, Dao 2023, arXiv:2312.00752. The norm of dt, B and C is Jamba's (with weights, Lieber et al.
// 2024, arXiv:2403.19887) or Falcon Mamba's (without, arXiv:2410.05355). With several heads each
// computes dt, B and C from its own channels alone (Zamba, arXiv:2405.16712). Forms: chunked
// without a state, recurrent with one.
#pragma once

#include "tessera/spec/fields.h"

namespace tessera::nn {

struct MambaConfig final : spec::Config {
  int64_t d_inner = 0;
  int64_t n_heads = 1;
  int64_t d_state = 16;
  int64_t dt_rank = 0;
  int64_t d_conv = 4;
  spec::Part<spec::Slot::norm> norm;
  bool proj_bias = false;
  bool conv_bias = true;
  int64_t chunk = 64;

  static constexpr auto fields() {
    using C = MambaConfig;
    using spec::field;
    return std::tuple{
        field("d_inner", &C::d_inner, "E, channels of the recurrence; 0 = 2 * d_model", {.min = 0}),
        field(
            "n_heads", &C::n_heads,
            "groups of channels with a step size, B and C of their own; divides d_inner (Zamba: 2)",
            {.min = 1}),
        field("d_state", &C::d_state, "N, state width of a channel", {.min = 1, .max = 4096}),
        field("dt_rank", &C::dt_rank, "rank of the step size; 0 = d_model / 16, rounded up",
              {.min = 0}),
        field("d_conv", &C::d_conv, "taps of the short convolution; 1 = a factor per channel",
              {.min = 1}),
        field("norm", &C::norm, "norm of dt, B and C, each with its own weights; null = none"),
        field("proj_bias", &C::proj_bias, "bias of the input and output projection"),
        field("conv_bias", &C::conv_bias, "bias of the convolution"),
        field("chunk", &C::chunk, "tokens per chunk of the chunked form", {.min = 1})};
  }
  static spec::Info info() {
    return {.summary =
                "Selective state-space layer: a diagonal recurrence whose step size, input "
                "and output depend on the token.",
            .paper =
                "Gu, Dao: Mamba: Linear-Time Sequence Modeling with Selective State Spaces, "
                "arXiv:2312.00752",
            .year = 2023,
            .forms = {.parallel = true, .chunked = true, .recurrent = true, .recorded = true}};
  }
  spec::Scope child_scope(spec::Scope scope, std::string_view) const {
    scope.width = d_state;
    return scope;
  }
  void complete(const spec::Scope& scope) override {
    if (d_inner == 0) d_inner = 2 * scope.d_model;
    if (dt_rank == 0) dt_rank = (scope.d_model + 15) / 16;
  }
  void check(const spec::Scope& scope) const override;
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
  std::vector<spec::StateDecl> state(const spec::Scope& scope) const override;
  double extra_flops(const spec::Scope& scope, int64_t context) const override;
};

}  // namespace tessera::nn
