// RMSNorm whose scale depends on what it normalises, through a gate of low rank:
//   n = x / sqrt(mean(x^2) + eps) * w;  y = n * sigmoid(U silu(D n)), D [rank, C], U [C, rank]
// Qiu et al. 2026, arXiv:2601.22966 (GatedNorm).
#pragma once

#include "tessera/spec/fields.h"

namespace tessera::nn {

struct GatedNormConfig final : spec::Config {
  double eps = 1e-6;
  int64_t rank = 16;

  static constexpr auto fields() {
    using C = GatedNormConfig;
    return std::tuple{spec::field("eps", &C::eps, "added to the mean square", {.min = 0}),
                      spec::field("rank", &C::rank, "channels between D and U", {.min = 1})};
  }
  static spec::Info info() {
    return {.summary = "RMSNorm with a scale that depends on the input.",
            .paper =
                "Qiu et al.: A Unified View of Attention and Residual Sinks: Outlier-Driven "
                "Rescaling is Essential for Transformer Training, arXiv:2601.22966",
            .year = 2026,
            .forms = {.recurrent = true, .recorded = true}};
  }
  void params(spec::ParamList& list, const spec::Scope& scope) const override {
    list.add({"weight", {scope.width}, spec::Init::constant(1), spec::ParamKind::norm});
    list.linear("down", rank, scope.width, /*bias=*/false);
    list.linear("up", scope.width, rank, /*bias=*/false);
  }
};

}  // namespace tessera::nn
