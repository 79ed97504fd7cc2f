// YaRN: frequencies that turn often within the trained length stay, slow ones are divided by s, a
// linear ramp over the index lies between; cos and sin are multiplied by an attention factor. Peng
// et al. 2023, arXiv:2309.00071; the ramp over the index follows the released code.
#pragma once

#include <numbers>

#include "tessera/nn/rope_scaling/rope_scaling_config.h"

namespace tessera::nn {

struct YarnScalingConfig final : RopeScalingConfig {
  double factor = 1;
  double original_length = 0;
  double beta_fast = 32, beta_slow = 1;
  std::optional<double> attention_factor;
  double mscale = 0, mscale_all_dim = 0;
  bool truncate = true;

  static constexpr auto fields() {
    using C = YarnScalingConfig;
    return std::tuple{
        spec::field("factor", &C::factor, "s", {.min = 1e-9, .required = true}),
        spec::field("original_length", &C::original_length, "L0, the trained length",
                    {.min = 1, .required = true}),
        spec::field("beta_fast", &C::beta_fast, "turns within L0 above which a frequency stays",
                    {.min = 1e-9}),
        spec::field("beta_slow", &C::beta_slow, "turns within L0 below which it is divided by s",
                    {.min = 1e-9}),
        spec::field("attention_factor", &C::attention_factor,
                    "factor on cos and sin; null = 0.1 ln s + 1"),
        spec::field("mscale", &C::mscale, "numerator of the attention factor, with mscale_all_dim"),
        spec::field("mscale_all_dim", &C::mscale_all_dim,
                    "its denominator; latent_attention's scale yarn_mscale reads it, too"),
        spec::field("truncate", &C::truncate, "round the borders of the ramp to whole indices")};
  }
  static spec::Info info() {
    return {
        .summary = "Stretches slow rotary frequencies, keeps fast ones, and sharpens the scores.",
        .paper =
            "Peng et al.: YaRN: Efficient Context Window Extension of Large Language Models, "
            "arXiv:2309.00071",
        .year = 2023,
        .forms = {.recurrent = true}};
  }

  void check(const spec::Scope& scope) const override {
    // what turns a part of a head's channels has a mixer that may read mscale_all_dim itself
    const bool read = scope.rotated > 0;
    if (attention_factor && (mscale != 0 || (mscale_all_dim != 0 && !read)))
      fail(ErrorKind::spec, scope.path,
           "attention_factor = {} and mscale = {}, mscale_all_dim = {} set the same thing; leave "
           "it or them out",
           *attention_factor, mscale, mscale_all_dim);
    if ((mscale != 0) != (mscale_all_dim != 0) && !(read && mscale == 0))
      fail(
          ErrorKind::spec, scope.path,
          "mscale = {} and mscale_all_dim = {}; the attention factor is their quotient: give both, "
          "or neither",
          mscale, mscale_all_dim);
  }
  RopeFrequencies frequencies(double theta, int64_t rotary_dim, int64_t) const override {
    const auto d = static_cast<double>(rotary_dim);
    // the index whose frequency makes n turns within L0
    const auto index_of = [&](double n) {
      return d * std::log(original_length / (2 * std::numbers::pi * n)) / (2 * std::log(theta));
    };
    double low = index_of(beta_fast), high = index_of(beta_slow);
    if (truncate) {
      low = std::floor(low);
      high = std::ceil(high);
    }
    low = std::max(low, 0.0);
    high = std::min(high, d - 1);
    if (low == high) high += 0.001;
    RopeFrequencies f{plain_frequencies(theta, rotary_dim), attention()};
    for (size_t m = 0; m < f.omega.size(); ++m) {
      const double ramp = std::clamp((static_cast<double>(m) - low) / (high - low), 0.0, 1.0);
      f.omega[m] = ramp * f.omega[m] / factor + (1 - ramp) * f.omega[m];
    }
    return f;
  }

 private:
  double attention() const {
    const auto g = [&](double m) { return factor <= 1 ? 1.0 : 0.1 * m * std::log(factor) + 1; };
    if (attention_factor) return *attention_factor;
    if (mscale != 0 && mscale_all_dim != 0) return g(mscale) / g(mscale_all_dim);
    return g(1);
  }
};

}  // namespace tessera::nn
