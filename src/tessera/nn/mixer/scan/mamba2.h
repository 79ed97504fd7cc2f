// Mamba-2 (state-space duality): a causal short convolution, then a state that decays by one scalar
// per head and token.
//   [z, xBC, dt] = W_in u;  xBC = silu(conv(xBC));  dt = clamp(softplus(dt + dt_bias));  a_t =
//   exp(-dt_t exp(A_log)) S_t = a_t S_{t-1} + dt_t x_t B_t^T;  y_t = S_t C_t + D x_t;  out = W_out
//   RMSNorm(y * silu(z))
// With d_ssm below the inner width E, W_in gives [z0, x0] of E - d_ssm channels before them, and
// silu(z0) x0 precedes y, normed, in what W_out reads. Dao, Gu 2024, arXiv:2405.21060; its
// state-spaces/mamba. Forms: chunked without a state, recurrent with one.
//
// With `levels` L (log-linear attention, Guo et al. 2025, arXiv:2506.04761) the past of a token
// lies in blocks of 1, 2, 4, ... tokens (a Fenwick tree), each with a state S^(l) and a weight that
// the token chooses: W_in gives dl [H, L] after dt, and
//   y_t = sum_l softplus(level_scale_l dl_tl) S_t^(l) C_t + D x_t
// with level 0 for the token itself. A document has at most 2^(L - 1) tokens; after t tokens the
// state holds a block for every bit of t.
#pragma once

#include "tessera/spec/fields.h"

namespace tessera::nn {

struct Mamba2Config final : spec::Config {
  int64_t n_heads = 0;
  int64_t head_dim = 0;
  int64_t d_ssm = 0;
  int64_t d_state = 128;
  int64_t n_groups = 1;
  int64_t d_conv = 4;
  bool proj_bias = false;
  bool conv_bias = true;
  bool d_per_channel = false;
  double dt_min = 0;
  std::optional<double> dt_max;
  int64_t norm_groups = 1;
  double norm_eps = 1e-5;
  int64_t levels = 0;
  int64_t chunk = 64;

  static constexpr auto fields() {
    using C = Mamba2Config;
    using spec::field;
    return std::tuple{
        field("n_heads", &C::n_heads, "H", {.min = 1, .required = true}),
        field("head_dim", &C::head_dim, "P; the inner width is H * P; 0 = 2 * d_model / H",
              {.min = 0}),
        field(
            "d_ssm", &C::d_ssm,
            "channels of the recurrence, whole heads of the H; the inner width's others are gated "
            "alone; 0 = H * P",
            {.min = 0}),
        field("d_state", &C::d_state, "N, state width of a channel", {.min = 1}),
        field("n_groups", &C::n_groups, "G groups of heads share B and C; divides d_ssm / P",
              {.min = 1}),
        field("d_conv", &C::d_conv, "taps of the short convolution; 1 = a factor per channel",
              {.min = 1}),
        field("proj_bias", &C::proj_bias, "bias of the input and output projection"),
        field("conv_bias", &C::conv_bias, "bias of the convolution"),
        field("d_per_channel", &C::d_per_channel, "a factor D for every channel, not every head"),
        field("dt_min", &C::dt_min, "lower limit of the step size", {.min = 0}),
        field("dt_max", &C::dt_max, "upper limit of the step size; null = none", {.min = 0}),
        field(
            "norm_groups", &C::norm_groups,
            "the gated norm's statistics cover d_ssm / norm_groups channels; 0 = no norm, the gate "
            "alone",
            {.min = 0}),
        field("norm_eps", &C::norm_eps, "added to its mean square", {.min = 0}),
        field(
            "levels", &C::levels,
            "L, time scales of the state with a weight each (log-linear attention), for documents "
            "of at most 2^(L - 1) tokens; 0 = one state of all tokens",
            {.min = 0}),
        field("chunk", &C::chunk, "tokens per chunk of the chunked form", {.min = 1})};
  }
  static spec::Info info() {
    return {.summary = "Selective state-space layer whose decay is one scalar per head and token.",
            .paper =
                "Dao, Gu: Transformers are SSMs, arXiv:2405.21060; Guo et al.: Log-Linear "
                "Attention, arXiv:2506.04761",
            .year = 2024,
            .forms = {.parallel = true, .chunked = true, .recurrent = true, .recorded = true}};
  }
  int64_t inner() const { return n_heads * head_dim; }
  int64_t heads() const { return d_ssm / head_dim; }  // of the recurrence
  int64_t beside() const { return inner() - d_ssm; }  // channels that are gated alone
  int64_t conv_channels() const { return d_ssm + 2 * n_groups * d_state; }

  std::string not_recorded_reason() const override {
    return levels > 0 ? "levels depend on the position" : "";
  }
  void complete(const spec::Scope& scope) override;
  void check(const spec::Scope& scope) const override;
  int64_t max_positions() const override { return levels > 0 ? int64_t{1} << (levels - 1) : 0; }
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
  std::vector<spec::StateDecl> state(const spec::Scope& scope) const override;
  double extra_flops(const spec::Scope& scope, int64_t context) const override;
};

}  // namespace tessera::nn
