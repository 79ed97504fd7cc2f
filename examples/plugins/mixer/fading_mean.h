// fading_mean: every channel is an exponential moving average of its past, read through a gate.
//   h_t = a h_{t-1} + (1 - a) W_i x_t,  a = sigmoid(lambda);  out = W_o(h * silu(W_g x))
// State: h of every sequence. Forms: parallel, chunked, recurrent.
#pragma once

#include "tessera/spec/fields.h"

namespace fading_mean_plugin {

namespace spec = tessera::spec;

/// The options in specs, {"type": "fading_mean", "width": 64}, and what follows from them.
struct FadingMeanConfig final : spec::Config {
  int64_t width = 0;
  int64_t chunk = 64;

  static constexpr auto fields() {
    using C = FadingMeanConfig;
    return std::tuple{
        spec::field("width", &C::width, "channels; 0 = d_model", {.min = 0}),
        spec::field("chunk", &C::chunk, "tokens per chunk of the chunked form", {.min = 1})};
  }
  static spec::Info info() {
    return {.summary = "An exponential moving average of every channel, read through a gate.",
            .paper = "authors, title, arXiv number",
            .year = 2026,
            .forms = {.parallel = true, .chunked = true, .recurrent = true}};
  }
  void complete(const spec::Scope& scope) override {
    if (width == 0) width = scope.d_model;
  }
  void check(const spec::Scope& scope) const override;
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
  std::vector<spec::StateDecl> state(const spec::Scope& scope) const override;
  double extra_flops(const spec::Scope& scope, int64_t context) const override;
};

}  // namespace fading_mean_plugin
