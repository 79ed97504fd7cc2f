// A score of a task with its uncertainty. Torch-free.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "tessera/spec/json.h"

namespace tessera::infer {

/// A value and its 95 % confidence interval.
struct Estimate {
  double value = 0, low = 0, high = 0;
  double standard_error = 0;  // of a mean: s_{n-1} / sqrt(n); bootstrap: of the resampled values
  const char* interval = "";  // its method: "wilson" or "bootstrap"

  spec::Json to_json() const;
};

/// s_{n-1} / sqrt(n), as lm-evaluation-harness reports it; 0 below two values.
double standard_error(std::span<const double> values);

/// A share of examples, with Wilson's score interval (Wilson 1927; Brown, Cai, DasGupta 2001,
/// eq. 4, z = 1.959964). Throws Error(internal) for no examples.
Estimate proportion(int64_t hits, int64_t examples);

/// Number of resamples of bootstrap().
inline constexpr int64_t kResamples = 1000;

/// A statistic of examples with its percentile bootstrap interval (Efron 1979): 2.5 and 97.5 % of
/// its values over `kResamples` draws of `examples` example numbers with replacement.
Estimate bootstrap(int64_t examples,
                   uint64_t seed,
                   const std::function<double(std::span<const int64_t> chosen)>& statistic);
/// The same for a mean; its standard error is standard_error(values).
Estimate mean_of(std::span<const double> values, uint64_t seed);

}  // namespace tessera::infer
