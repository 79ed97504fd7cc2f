// Paired differences of losses: how large, how certain. Torch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace tessera::train {

/// Distribution function of Student's t with `degrees` > 0 degrees of freedom:
///   P(T <= t) = 1 - I_x(degrees/2, 1/2) / 2 for t >= 0, x = degrees / (degrees + t^2)
double student_t_cdf(double t, double degrees);
/// Its inverse, 0 < p < 1.
double student_t_quantile(double p, double degrees);

struct PairedDifference {
  int64_t pairs = 0;
  double mean = 0;
  /// 95 % interval of the mean and two-sided p of mean 0, by Student's t over the pairs; nothing
  /// below 2 pairs.
  std::optional<std::pair<double, double>> interval = {};
  std::optional<double> p = {};
};
/// Of first[i] - second[i]; the same data order and seed make a pair. Throws Error(internal) where
/// the lengths differ or there is no pair.
PairedDifference paired_difference(const std::vector<double>& first,
                                   const std::vector<double>& second);

/// Percentiles 2.5 and 97.5, linear between values. Throws Error(internal) without values.
std::pair<double, double> central_95(std::vector<double> values);

/// Percentile interval of the mean of values[seed][block], by resampling seeds and blocks
/// independently (a crossed bootstrap): every resample where there are at most `resamples` of them,
/// else that many, drawn from a stream of their own. central_95() of the means;
/// p = 2 min(share <= 0, share >= 0), at most 1.
struct CrossedInterval {
  double low = 0, high = 0;
  double share_below = 0;  // of resamples whose mean is <= 0
  double p = 1;
};
/// Throws Error(internal) where rows differ in length, or there are none.
CrossedInterval crossed_interval(const std::vector<std::vector<double>>& values,
                                 int64_t resamples = 10'000);

/// Holm's step-down adjustment of p-values of several comparisons (Holm 1979, Scand. J. Stat. 6):
/// in ascending order, max over those so far of (n - i) p_i, at most 1. In the given order.
std::vector<double> holm_adjusted(const std::vector<double>& p);

}  // namespace tessera::train
