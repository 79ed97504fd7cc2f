// Dynamic NTK: the base grows with the length L of the sequence once it exceeds the trained length
// L0,
//   theta' = theta * (s L / L0 - (s - 1))^(r/(r-2)).
// Every angle then depends on the total length: a state is continued up to L0; beyond it, what it
// holds is recomputed for every token, so that no key keeps the angles of a shorter sequence.
// emozilla 2023; Peng et al. 2023, arXiv:2309.00071, sec. 3.3.
#pragma once

#include <algorithm>

#include "tessera/nn/rope_scaling/ntk.h"

namespace tessera::nn {

struct DynamicScalingConfig final : RopeScalingConfig {
  double factor = 1;
  int64_t original_length = 0;

  static constexpr auto fields() {
    using C = DynamicScalingConfig;
    return std::tuple{spec::field("factor", &C::factor, "s", {.min = 1e-9, .required = true}),
                      spec::field("original_length", &C::original_length, "L0, the trained length",
                                  {.min = 1, .required = true})};
  }
  static spec::Info info() {
    return {.summary = "Raises the rotary base as the sequence grows beyond the trained length.",
            .paper = "Peng et al.: YaRN, arXiv:2309.00071, sec. 3.3",
            .year = 2023,
            .causality = spec::Causality::none,
            .forms = {.recurrent = true}};
  }
  RopeFrequencies frequencies(double theta, int64_t rotary_dim, int64_t length) const override {
    const auto l0 = static_cast<double>(original_length);
    const double l = std::max(static_cast<double>(length), l0);
    return {
        plain_frequencies(ntk_theta(theta, factor * l / l0 - (factor - 1), rotary_dim), rotary_dim),
        1};
  }
  int64_t angles_until(int64_t length) const override { return std::max(length, original_length); }
};

}  // namespace tessera::nn
