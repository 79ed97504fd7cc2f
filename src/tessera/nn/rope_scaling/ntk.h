// NTK-aware base change: theta' = theta * alpha^(r/(r-2)); the first frequency stays, the last is
// divided by alpha. bloc97 2023, "NTK-aware scaled RoPE".
#pragma once

#include "tessera/nn/rope_scaling/rope_scaling_config.h"

namespace tessera::nn {

/// theta * alpha^(r/(r-2)); r = 2 has one frequency, 1, which no base changes.
inline double ntk_theta(double theta, double alpha, int64_t rotary_dim) {
  if (rotary_dim <= 2) return theta;
  const auto r = static_cast<double>(rotary_dim);
  return theta * std::pow(alpha, r / (r - 2));
}

struct NtkScalingConfig final : RopeScalingConfig {
  double factor = 1;

  static constexpr auto fields() {
    return std::tuple{
        spec::field("factor", &NtkScalingConfig::factor, "alpha", {.min = 1e-9, .required = true})};
  }
  static spec::Info info() {
    return {
        .summary = "Raises the rotary base so that only low frequencies are stretched.",
        .paper =
            "bloc97: NTK-aware scaled RoPE (described in Peng et al., arXiv:2309.00071, sec. 3.1)",
        .year = 2023,
        .forms = {.recurrent = true}};
  }
  RopeFrequencies frequencies(double theta, int64_t rotary_dim, int64_t) const override {
    return {plain_frequencies(ntk_theta(theta, factor, rotary_dim), rotary_dim), 1};
  }
};

}  // namespace tessera::nn
