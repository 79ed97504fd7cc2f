// Hyper-connections whose mixing of the streams is doubly stochastic, so that depth neither blows
// them up nor fades them. With x = vec(H) / rms(vec(H)) and z = F x = [z_pre | z_post | Z]:
//   pre = sigmoid(s_0 z_pre + b_pre) + eps,   post = magnitude sigmoid(s_1 z_post + b_post)
//   C = rows and columns of softmax_rows(s_2 Z + b_C) + eps, normalised in turns (Sinkhorn)
//   u = sum_s pre_s H_s,   H'_t = post_t f(N(u)) + sum_j C[j,t] H_j
// Where the run ends: x once more, pre = sigmoid(s x F_h + b_h) + eps, x_ND = sum_s pre_s H_s.
// Without `mix` (independent hyper-connections, Hy4) there are no Z and s_2, eps joins post, and
//   H'_t = post_t f(N(u)) + H_t
// Xie et al. 2025, arXiv:2512.24880. Additions 6.2.
#pragma once

#include "tessera/nn/residual/residual_config.h"

namespace tessera::nn {

struct ManifoldHyperConnectionsConfig final : ResidualConfig {
  int64_t streams = 4;
  bool mix = true;
  int64_t iterations = 20;
  double magnitude = 2;
  double eps = 1e-6;
  double norm_eps = 1e-6;

  static constexpr auto fields() {
    using C = ManifoldHyperConnectionsConfig;
    return std::tuple_cat(
        std::tuple{
            spec::field("streams", &C::streams, "n", {.min = 1}),
            spec::field("mix", &C::mix, "whether the streams are mixed; else each keeps its own"),
            spec::field("iterations", &C::iterations, "of Sinkhorn's normalisation", {.min = 1}),
            spec::field("magnitude", &C::magnitude, "greatest weight of the branch in a stream"),
            spec::field("eps", &C::eps, "added to weights and sums", {.min = 0}),
            spec::field("norm_eps", &C::norm_eps, "within the root of rms", {.min = 0})},
        output_fields<C>());
  }
  static spec::Info info() {
    return {.summary = "Several streams, mixed by doubly stochastic weights around every branch.",
            .paper = "Xie et al.: mHC: Manifold-Constrained Hyper-Connections, arXiv:2512.24880",
            .year = 2025,
            .forms = {.recurrent = true, .recorded = true}};
  }
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
  void leave_params(spec::ParamList& list, const spec::Scope& scope) const override;
  std::vector<std::string> norms() const override { return {"norm"}; }
  std::string carries() const override {
    return "manifold hyper-connections " + std::to_string(streams);
  }
};

}  // namespace tessera::nn
