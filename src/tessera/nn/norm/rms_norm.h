// Root mean square norm: y = x / sqrt(mean(x^2) + eps) * w, statistics in float32 or better.
// Zhang and Sennrich 2019, arXiv:1910.07467, eq. 4 (eps inside the root, as every checkpoint has
// it).
#pragma once

#include "tessera/nn/norm/norm_weight.h"

namespace tessera::nn {

struct RmsNormConfig final : spec::Config {
  double eps = 1e-6;
  NormWeight weight = NormWeight::plain;

  static constexpr auto fields() {
    using C = RmsNormConfig;
    return std::tuple{spec::field("eps", &C::eps, "added to the mean square", {.min = 0}),
                      spec::field("weight", &C::weight, "how the weight enters")};
  }
  static spec::Info info() {
    return {.summary = "Scales every token to unit root mean square; no mean is removed.",
            .paper = "Zhang, Sennrich: Root Mean Square Layer Normalization, arXiv:1910.07467",
            .year = 2019,
            .forms = {.recurrent = true, .recorded = true}};
  }
  void params(spec::ParamList& list, const spec::Scope& scope) const override {
    list.add_if(weight != NormWeight::none,
                {"weight",
                 {scope.width},
                 spec::Init::constant(weight == NormWeight::plain ? 1 : 0),
                 spec::ParamKind::norm});
  }
};

}  // namespace tessera::nn
