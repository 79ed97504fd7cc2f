// sLSTM (xLSTM): a scalar-memory LSTM with exponential gates, a normaliser and a stabiliser, whose
// gates also read the last output of their head.
//   x' = silu(conv(x));  i, f = W x', z, o = W x (block-diagonal);  g_t = W_g + R_g h_{t-1} + b_g
//   c = f' c + i' tanh(z), n = f' n + i', h = sigmoid(o) c / n;  out = LayerNorm of each head * w
// Beck et al. 2024, arXiv:2405.04517. The recurrence through the gates leaves no parallel form:
// time runs token by token, heads in parallel. Heads meet in the feed-forward layer that follows.
#pragma once

#include "tessera/spec/fields.h"

namespace tessera::nn {

struct SlstmConfig final : spec::Config {
  int64_t n_heads = 0;
  int64_t d_conv = 4;
  double norm_eps = 1e-5;

  static constexpr auto fields() {
    using C = SlstmConfig;
    using spec::field;
    return std::tuple{
        field("n_heads", &C::n_heads, "heads, the blocks of every matrix; divides d_model",
              {.min = 1, .required = true}),
        field("d_conv", &C::d_conv, "taps of the convolution before i and f; 0 = none", {.min = 0}),
        field("norm_eps", &C::norm_eps, "added to the variance of a head", {.min = 0})};
  }
  static spec::Info info() {
    return {.summary = "LSTM with exponential gates and a normaliser, recurrent within heads.",
            .paper = "Beck et al.: xLSTM: Extended Long Short-Term Memory, arXiv:2405.04517",
            .year = 2024,
            .forms = {.parallel = false, .recurrent = true, .recorded = true}};
  }
  void check(const spec::Scope& scope) const override;
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
  std::vector<spec::StateDecl> state(const spec::Scope& scope) const override;
  double extra_flops(const spec::Scope& scope, int64_t context) const override;
};

}  // namespace tessera::nn
