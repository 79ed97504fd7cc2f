// Llama 3.1 scaling: wavelengths beyond L0 / f_low are stretched by s, those below L0 / f_high
// stay, the ones between are blended. Dubey et al. 2024, arXiv:2407.21783; meta-llama/llama-models.
#pragma once

#include <numbers>

#include "tessera/nn/rope_scaling/rope_scaling_config.h"

namespace tessera::nn {

struct Llama3ScalingConfig final : RopeScalingConfig {
  double factor = 8;
  double low_freq_factor = 1, high_freq_factor = 4;
  double original_length = 8192;

  static constexpr auto fields() {
    using C = Llama3ScalingConfig;
    return std::tuple{
        spec::field("factor", &C::factor, "s", {.min = 1e-9, .required = true}),
        spec::field("low_freq_factor", &C::low_freq_factor, "f_low", {.min = 1e-9}),
        spec::field("high_freq_factor", &C::high_freq_factor, "f_high", {.min = 1e-9}),
        spec::field("original_length", &C::original_length, "L0, the trained length",
                    {.min = 1, .required = true})};
  }
  static spec::Info info() {
    return {.summary = "Stretches long wavelengths, keeps short ones, blends between.",
            .paper = "Dubey et al.: The Llama 3 Herd of Models, arXiv:2407.21783",
            .year = 2024,
            .forms = {.recurrent = true}};
  }
  void check(const spec::Scope& scope) const override {
    if (low_freq_factor > high_freq_factor)
      fail(ErrorKind::spec, scope.path, "low_freq_factor = {} exceeds high_freq_factor = {}",
           low_freq_factor, high_freq_factor);
  }
  RopeFrequencies frequencies(double theta, int64_t rotary_dim, int64_t) const override {
    RopeFrequencies f{plain_frequencies(theta, rotary_dim), 1};
    for (double& omega : f.omega) {
      const double wavelength = 2 * std::numbers::pi / omega;
      if (wavelength > original_length / low_freq_factor) {
        omega /= factor;
      } else if (wavelength >= original_length / high_freq_factor &&
                 high_freq_factor > low_freq_factor) {
        const double blend =
            (original_length / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor);
        omega = (1 - blend) * omega / factor + blend * omega;
      }
    }
    return f;
  }
};

}  // namespace tessera::nn
