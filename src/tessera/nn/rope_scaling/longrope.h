// LongRoPE: a searched divisor per frequency, one list for sequences within the trained length L0,
// one beyond. Crossing L0 changes all angles, so a cache is recomputed there once. Ding et al.
// 2024, arXiv:2402.13753; Phi-3 and Phi-4-mini checkpoints.
#pragma once

#include "tessera/nn/rope_scaling/rope_scaling_config.h"

namespace tessera::nn {

struct LongRopeScalingConfig final : RopeScalingConfig {
  std::vector<double> short_factor, long_factor;
  int64_t original_length = 0;
  double factor = 1;
  std::optional<double> attention_factor, long_attention_factor;

  static constexpr auto fields() {
    using C = LongRopeScalingConfig;
    return std::tuple{
        spec::field("short_factor", &C::short_factor, "divisors up to L0, one per pair",
                    {.min = 1e-9, .required = true}),
        spec::field("long_factor", &C::long_factor, "divisors beyond L0",
                    {.min = 1e-9, .required = true}),
        spec::field("original_length", &C::original_length, "L0, the trained length",
                    {.min = 1, .required = true}),
        spec::field("factor", &C::factor, "s = longest length / L0, for the attention factor",
                    {.min = 0}),
        spec::field("attention_factor", &C::attention_factor,
                    "factor on cos and sin; null = sqrt(1 + ln s / ln L0)"),
        spec::field("long_attention_factor", &C::long_attention_factor,
                    "the same beyond L0; null = that up to L0 (Phi-3.5-MoE may have two)")};
  }
  static spec::Info info() {
    return {
        .summary =
            "Searched divisors per rotary frequency, with a second list beyond the trained length.",
        .paper =
            "Ding et al.: LongRoPE: Extending LLM Context Window Beyond 2 Million Tokens, "
            "arXiv:2402.13753",
        .year = 2024,
        .causality = spec::Causality::none,
        .forms = {.recurrent = true}};
  }
  void check(const spec::Scope& scope) const override {
    const auto pairs = static_cast<size_t>(scope.width / 2);
    if (short_factor.size() != pairs || long_factor.size() != pairs)
      fail(ErrorKind::spec, scope.path,
           "short_factor has {} and long_factor {} entries; expected {}, one per rotated pair",
           short_factor.size(), long_factor.size(), pairs);
    if (attention_factor && factor != 1)
      fail(ErrorKind::spec, scope.path,
           "factor = {} and attention_factor = {} set the same thing; leave one of them out",
           factor, *attention_factor);
  }
  RopeFrequencies frequencies(double theta, int64_t rotary_dim, int64_t length) const override {
    const double automatic =
        factor <= 1
            ? 1
            : std::sqrt(1 + std::log(factor) / std::log(static_cast<double>(original_length)));
    const double up_to = attention_factor.value_or(automatic);
    const bool beyond = length > original_length;
    RopeFrequencies f{plain_frequencies(theta, rotary_dim),
                      beyond ? long_attention_factor.value_or(up_to) : up_to};
    const std::vector<double>& divisors = beyond ? long_factor : short_factor;
    for (size_t m = 0; m < f.omega.size(); ++m) f.omega[m] /= divisors[m];
    return f;
  }
  int64_t angles_until(int64_t length) const override {
    return length <= original_length ? original_length : kAnglesStay;
  }
};

}  // namespace tessera::nn
