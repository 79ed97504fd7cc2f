// Mamba-2 (state-space duality): a causal short convolution, then a state that decays by one scalar
// per head and token.
//   [z, xBC, dt] = W_in u;  xBC = silu(conv(xBC));  dt = clamp(softplus(dt + dt_bias));  a_t =
//   exp(-dt_t exp(A_log)) S_t = a_t S_{t-1} + dt_t x_t B_t^T;  y_t = S_t C_t + D x_t;  out = W_out
//   RMSNorm(y * silu(z))
// Dao, Gu 2024, arXiv:2405.21060. Forms: chunked without a state, recurrent with one.
#pragma once

#include "tessera/spec/fields.h"

namespace tessera::nn {

struct Mamba2Config final : spec::Config {
  int64_t n_heads = 0;
  int64_t head_dim = 0;
  int64_t d_state = 128;
  int64_t n_groups = 1;
  int64_t d_conv = 4;
  bool proj_bias = false;
  bool conv_bias = true;
  double dt_min = 0;
  std::optional<double> dt_max;
  int64_t norm_groups = 1;
  double norm_eps = 1e-5;
  int64_t chunk = 64;

  static constexpr auto fields() {
    using C = Mamba2Config;
    using spec::field;
    return std::tuple{
        field("n_heads", &C::n_heads, "H", {.min = 1, .required = true}),
        field("head_dim", &C::head_dim, "P; the inner width is H * P; 0 = 2 * d_model / H",
              {.min = 0}),
        field("d_state", &C::d_state, "N, state width of a channel", {.min = 1}),
        field("n_groups", &C::n_groups, "G groups share B and C; divides H", {.min = 1}),
        field("d_conv", &C::d_conv, "taps of the short convolution", {.min = 1}),
        field("proj_bias", &C::proj_bias, "bias of the input and output projection"),
        field("conv_bias", &C::conv_bias, "bias of the convolution"),
        field("dt_min", &C::dt_min, "lower limit of the step size", {.min = 0}),
        field("dt_max", &C::dt_max, "upper limit of the step size; null = none", {.min = 0}),
        field(
            "norm_groups", &C::norm_groups,
            "the gated norm's statistics cover H * P / norm_groups channels; 0 = no norm, the gate "
            "alone",
            {.min = 0}),
        field("norm_eps", &C::norm_eps, "added to its mean square", {.min = 0}),
        field("chunk", &C::chunk, "tokens per chunk of the chunked form", {.min = 1})};
  }
  static spec::Info info() {
    return {.summary = "Selective state-space layer whose decay is one scalar per head and token.",
            .paper = "Dao, Gu: Transformers are SSMs, arXiv:2405.21060",
            .year = 2024,
            .forms = {.parallel = true, .chunked = true, .recurrent = true}};
  }
  int64_t inner() const { return n_heads * head_dim; }
  int64_t conv_channels() const { return inner() + 2 * n_groups * d_state; }

  void complete(const spec::Scope& scope) override {
    if (head_dim != 0) return;
    if (2 * scope.d_model % n_heads != 0)
      fail(ErrorKind::spec, scope.path,
           "n_heads = {} does not divide 2 * d_model = {}; give head_dim, or another n_heads",
           n_heads, 2 * scope.d_model);
    head_dim = 2 * scope.d_model / n_heads;
  }
  void check(const spec::Scope& scope) const override;
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
  std::vector<spec::StateDecl> state(const spec::Scope& scope) const override;
  double extra_flops(const spec::Scope& scope, int64_t context) const override;
};

}  // namespace tessera::nn
