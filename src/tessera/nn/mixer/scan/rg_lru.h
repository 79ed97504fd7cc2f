// Griffin's recurrent block around the real-gated linear recurrent unit (RG-LRU):
//   c = conv(W_x u);  i = sigmoid(G_i c), r = sigmoid(G_r c);  a = exp(-8 softplus(lambda) r)
//   h_t = a_t h_{t-1} + sqrt(1 - a_t^2) i_t c_t;  out = W_o (h * gelu_tanh(W_y u))
// A document's first token resets: h = i c. The gates are block-diagonal. De, Smith et al. 2024,
// arXiv:2402.19427; RecurrentGemma, arXiv:2404.07839. Forms: chunked without a state, recurrent
// with one.
#pragma once

#include "tessera/spec/fields.h"

namespace tessera::nn {

struct RgLruConfig final : spec::Config {
  int64_t n_heads = 0;
  int64_t width = 0;
  int64_t d_conv = 4;
  int64_t chunk = 64;

  static constexpr auto fields() {
    using C = RgLruConfig;
    using spec::field;
    return std::tuple{
        field("n_heads", &C::n_heads, "blocks of the gates; divides width",
              {.min = 1, .required = true}),
        field("width", &C::width, "channels of the recurrence; 0 = d_model", {.min = 0}),
        field("d_conv", &C::d_conv, "taps of the short convolution; 1 = a factor per channel",
              {.min = 1}),
        field("chunk", &C::chunk, "tokens per chunk of the chunked form", {.min = 1})};
  }
  static spec::Info info() {
    return {.summary =
                "Gated linear recurrence over a short convolution, multiplied by a GELU "
                "branch: Griffin's recurrent block.",
            .paper =
                "De, Smith et al.: Griffin, arXiv:2402.19427; RecurrentGemma, "
                "arXiv:2404.07839",
            .year = 2024,
            .forms = {.parallel = true, .chunked = true, .recurrent = true, .recorded = true}};
  }
  void complete(const spec::Scope& scope) override {
    if (width == 0) width = scope.d_model;
  }
  void check(const spec::Scope& scope) const override;
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
  std::vector<spec::StateDecl> state(const spec::Scope& scope) const override;
  double extra_flops(const spec::Scope& scope, int64_t context) const override;
};

}  // namespace tessera::nn
