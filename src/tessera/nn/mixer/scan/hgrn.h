// HGRN: a gated linear recurrence of each channel alone, in which deeper layers forget less.
//   g_t = lb + (1 - lb) sigmoid(W_f x);  h_t = g_t h_{t-1} + (1 - g_t) silu(W_i x)
//   out = W_o( RMSNorm(h) * silu(W_g x) )
// The lower bound lb is that of lower_bounds.h. Qin, Yang, Zhong 2023, arXiv:2311.04823. Forms:
// chunked (parallel when chunk >= T), recurrent.
#pragma once

#include "tessera/nn/mixer/linear/lower_bounds.h"

namespace tessera::nn {

struct HgrnConfig final : spec::Config {
  int64_t width = 0;
  LowerBound lower_bound = LowerBound::learned;
  static constexpr const char* kShared = "hgrn";  // under which layers share the table
  int64_t d_conv = 0;
  double norm_eps = 1e-5;
  int64_t chunk = 64;

  static constexpr auto fields() {
    using C = HgrnConfig;
    using spec::field;
    return std::tuple{
        field("width", &C::width, "channels of the recurrence; 0 = d_model", {.min = 0}),
        field("lower_bound", &C::lower_bound, "least value of the forget gate"),
        field("d_conv", &C::d_conv, "taps of a short convolution of i and f; 0 = none", {.min = 0}),
        field("norm_eps", &C::norm_eps, "added to the mean square of the output", {.min = 0}),
        field("chunk", &C::chunk, "tokens per chunk of the chunked form", {.min = 1})};
  }
  static spec::Info info() {
    return {.summary =
                "Gated linear recurrence of single channels, whose forget gates have least values "
                "that rise with the layer.",
            .paper =
                "Qin, Yang, Zhong: Hierarchically Gated Recurrent Neural Network for Sequence "
                "Modeling, arXiv:2311.04823",
            .year = 2023,
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
