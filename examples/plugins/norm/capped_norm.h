// capped_norm: a root mean square norm whose values are bounded.
//   n = x / sqrt(mean(x^2) + eps) * w,  y = cap tanh(n / cap)
#pragma once

#include "tessera/spec/fields.h"

namespace capped_norm_plugin {

namespace spec = tessera::spec;

/// The options in specs, {"type": "capped_norm", "cap": 3}, and what follows from them.
struct CappedNormConfig final : spec::Config {
  double eps = 1e-6;
  double cap = 3;

  static constexpr auto fields() {
    using C = CappedNormConfig;
    return std::tuple{spec::field("eps", &C::eps, "added to the mean square", {.min = 0}),
                      spec::field("cap", &C::cap, "bound of the values; 0 = none", {.min = 0})};
  }
  static spec::Info info() {
    return {.summary = "A root mean square norm whose values are bounded.",
            .paper = "authors, title, arXiv number",
            .year = 2026,
            .forms = {.recurrent = true}};
  }
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
};

}  // namespace capped_norm_plugin
