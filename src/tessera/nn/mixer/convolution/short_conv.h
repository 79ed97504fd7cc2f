// Gated short convolution: a few taps of the past between two gates.
//   [b, c, x] = W_in u;  out = W_out (c * conv(b * x))
// Liquid AI 2025 (LFM2, arXiv:2511.23404). State: the inputs that the taps still see.
#pragma once

#include "tessera/spec/fields.h"

namespace tessera::nn {

struct ShortConvConfig final : spec::Config {
  int64_t d_conv = 3;
  bool bias = false;

  static constexpr auto fields() {
    using C = ShortConvConfig;
    return std::tuple{
        spec::field("d_conv", &C::d_conv, "taps, the present included", {.min = 1}),
        spec::field("bias", &C::bias, "bias of the projections and of the convolution")};
  }
  static spec::Info info() {
    return {.summary = "A causal convolution of a few taps between two gates.",
            .paper = "Liquid AI: LFM2 Technical Report, arXiv:2511.23404",
            .year = 2025,
            .forms = {.parallel = true, .recurrent = true, .recorded = true}};
  }
  void check(const spec::Scope& scope) const override;
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
  std::vector<spec::StateDecl> state(const spec::Scope& scope) const override;
  double extra_flops(const spec::Scope& scope, int64_t context) const override;
};

}  // namespace tessera::nn
