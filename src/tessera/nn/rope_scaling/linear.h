// Position interpolation: omega' = omega / s.
// Chen et al. 2023, arXiv:2306.15595.
#pragma once

#include "tessera/nn/rope_scaling/rope_scaling_config.h"

namespace tessera::nn {

struct LinearScalingConfig final : RopeScalingConfig {
  double factor = 1;

  static constexpr auto fields() {
    return std::tuple{spec::field("factor", &LinearScalingConfig::factor, "how much longer",
                                  {.min = 1e-9, .required = true})};
  }
  static spec::Info info() {
    return {.summary = "Divides every rotary frequency by a factor.",
            .paper =
                "Chen et al.: Extending Context Window of Large Language Models via Positional "
                "Interpolation, arXiv:2306.15595",
            .year = 2023,
            .forms = {.recurrent = true}};
  }
  RopeFrequencies frequencies(double theta, int64_t rotary_dim, int64_t) const override {
    RopeFrequencies f{plain_frequencies(theta, rotary_dim), 1};
    for (double& omega : f.omega) omega /= factor;
    return f;
  }
};

}  // namespace tessera::nn
