// RWKV-4 time mixing: an average over the past whose weights decay by channel, and a bonus for the
// present.
//   m(x, mu)_t = mu x_t + (1 - mu) x_{t-1};  k = K m(x, mu_k), v = V m(x, mu_v), r = R m(x, mu_r)
//   wkv_t = (sum_{i<t} e^{(t-1-i) w + k_i} v_i + e^{u+k_t} v_t) / (the same with v = 1)
//   out = O (sigmoid(r) * wkv),  w = -exp(time_decay), u = time_first
// Peng et al. 2023, arXiv:2305.13048. Forms: parallel without a state, recurrent with one.
#pragma once

#include "tessera/spec/fields.h"

namespace tessera::nn {

struct Rwkv4Config final : spec::Config {
  int64_t width = 0;

  static constexpr auto fields() {
    using C = Rwkv4Config;
    return std::tuple{
        spec::field("width", &C::width, "channels of the average; 0 = d_model", {.min = 0})};
  }
  static spec::Info info() {
    return {.summary = "RWKV-4 time mixing: an average over the past with a decay per channel.",
            .paper =
                "Peng et al.: RWKV: Reinventing RNNs for the Transformer Era, "
                "arXiv:2305.13048",
            .year = 2023,
            .forms = {.parallel = true, .recurrent = true, .recorded = true}};
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
