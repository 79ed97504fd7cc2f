// n streams H [n, D] a token, mixed around every branch f:
//   u = sum_s A[s,0] H_s,   H'_t = sum_s A[s,1+t] H_s + B_t f(N(u))
// A = A_s + s_a tanh(M(H) W_a^T) [n, n+1], B = B_s + s_b tanh(M(H) w_b) [n], M a norm of each
// stream; static: A = A_s, B = B_s. All streams begin as the embedding; where the run ends they are
// summed. At its initial values every stream is that of pre_norm. Zhu et al. 2024,
// arXiv:2409.19606, sec. 2. Additions 6.1.
#pragma once

#include "tessera/nn/residual/residual_config.h"

namespace tessera::nn {

struct HyperConnectionsConfig final : ResidualConfig {
  int64_t streams = 4;
  bool dynamic = true;
  spec::Part<spec::Slot::norm> norm;

  static constexpr auto fields() {
    using C = HyperConnectionsConfig;
    return std::tuple_cat(
        std::tuple{spec::field("streams", &C::streams, "n", {.min = 1}),
                   spec::field("dynamic", &C::dynamic, "weights that follow from the streams"),
                   spec::field("norm", &C::norm, "M, of dynamic ones; null = rms_norm")},
        output_fields<C>());
  }
  static spec::Info info() {
    return {.summary = "Several streams, mixed by learned weights around every branch.",
            .paper = "Zhu et al.: Hyper-Connections, arXiv:2409.19606",
            .year = 2024,
            .forms = {.recurrent = true, .recorded = true}};
  }
  void complete(const spec::Scope& scope) override;
  void check(const spec::Scope& scope) const override;
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
  std::vector<std::string> norms() const override { return {"norm"}; }
  std::string carries() const override { return "hyper-connections " + std::to_string(streams); }
};

}  // namespace tessera::nn
