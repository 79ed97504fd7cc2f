#include "tessera/infer/evaluation/estimate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tessera/base/error.h"
#include "tessera/base/rng.h"

namespace tessera::infer {
namespace {

constexpr double kNormalQuantile = 1.959963984540054;  // of 0.975

/// Linear between the sorted values.
double quantile(const std::vector<double>& sorted, double share) {
  const double at = share * static_cast<double>(sorted.size() - 1);
  const auto i = static_cast<size_t>(at);
  const double rest = at - static_cast<double>(i);
  return i + 1 < sorted.size() ? sorted[i] + rest * (sorted[i + 1] - sorted[i]) : sorted[i];
}

}  // namespace

spec::Json Estimate::to_json() const {
  return {{"value", value},
          {"stderr", standard_error},
          {"low", low},
          {"high", high},
          {"interval", interval}};
}

double standard_error(std::span<const double> values) {
  if (values.size() < 2) return 0;
  const auto n = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return std::sqrt(squares / (n - 1) / n);
}

Estimate proportion(int64_t hits, int64_t examples) {
  require(examples > 0, "estimate", "a share of no examples");
  const auto n = static_cast<double>(examples);
  const double p = static_cast<double>(hits) / n, z2 = kNormalQuantile * kNormalQuantile;
  const double center = (p + z2 / (2 * n)) / (1 + z2 / n);
  const double half =
      kNormalQuantile / (1 + z2 / n) * std::sqrt(p * (1 - p) / n + z2 / (4 * n * n));
  return {.value = p,
          .low = hits == 0 ? 0 : center - half,
          .high = hits == examples ? 1 : center + half,
          // the sample variance of 0 and 1
          .standard_error = examples > 1 ? std::sqrt(p * (1 - p) / (n - 1)) : 0,
          .interval = "wilson"};
}

Estimate bootstrap(int64_t examples,
                   uint64_t seed,
                   const std::function<double(std::span<const int64_t> chosen)>& statistic) {
  require(examples > 0, "estimate", "a statistic of no examples");
  const RandomKey key = RandomKey(seed).fold("bootstrap");
  std::vector<int64_t> chosen(static_cast<size_t>(examples));
  std::iota(chosen.begin(), chosen.end(), 0);
  Estimate estimate{.value = statistic(chosen), .interval = "bootstrap"};
  std::vector<double> values;
  for (int64_t r = 0; r < kResamples; ++r) {
    const RandomKey draws = key.fold(static_cast<uint64_t>(r));
    for (size_t i = 0; i < chosen.size(); ++i)
      chosen[i] =
          static_cast<int64_t>(uint64_t{draws.bits(i)} * static_cast<uint64_t>(examples) >> 32);
    values.push_back(statistic(chosen));
  }
  std::sort(values.begin(), values.end());
  estimate.low = quantile(values, 0.025);
  estimate.high = quantile(values, 0.975);
  estimate.standard_error = standard_error(values) * std::sqrt(static_cast<double>(kResamples));
  return estimate;
}

Estimate mean_of(std::span<const double> values, uint64_t seed) {
  Estimate estimate = bootstrap(std::ssize(values), seed, [&](std::span<const int64_t> chosen) {
    double sum = 0;
    for (const int64_t i : chosen) sum += values[static_cast<size_t>(i)];
    return sum / static_cast<double>(chosen.size());
  });
  estimate.standard_error = standard_error(values);
  return estimate;
}

}  // namespace tessera::infer
