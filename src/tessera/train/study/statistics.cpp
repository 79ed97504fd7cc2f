#include "tessera/train/study/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "tessera/base/error.h"
#include "tessera/base/rng.h"

namespace tessera::train {
namespace {

/// Continued fraction of the incomplete beta function by Lentz's method (Numerical Recipes, 6.4);
/// converges quickly for x < (a + 1) / (a + b + 2).
double beta_fraction(double a, double b, double x) {
  constexpr double kTiny = 1e-300, kEpsilon = 1e-16;
  const auto away_from_0 = [](double value) { return std::fabs(value) < kTiny ? kTiny : value; };
  double c = 1, d = 1 / away_from_0(1 - (a + b) * x / (a + 1)), h = d;
  for (int m = 1; m <= 10'000; ++m) {
    const double even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
    d = 1 / away_from_0(1 + even * d);
    c = away_from_0(1 + even / c);
    h *= d * c;
    const double odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
    d = 1 / away_from_0(1 + odd * d);
    c = away_from_0(1 + odd / c);
    h *= d * c;
    if (std::fabs(d * c - 1) < kEpsilon) break;
  }
  return h;
}

/// The regularized incomplete beta function I_x(a, b).
double incomplete_beta(double a, double b, double x) {
  if (x <= 0 || x >= 1) return x <= 0 ? 0 : 1;
  const double front = std::exp(std::lgamma(a + b) - std::lgamma(a) - std::lgamma(b) +
                                a * std::log(x) + b * std::log1p(-x));
  return x < (a + 1) / (a + b + 2) ? front * beta_fraction(a, b, x) / a
                                   : 1 - front * beta_fraction(b, a, 1 - x) / b;
}

/// P(|T| > |t|).
double two_sided(double t, double degrees) {
  return incomplete_beta(degrees / 2, 0.5, degrees / (degrees + t * t));
}

}  // namespace

double student_t_cdf(double t, double degrees) {
  const double tail = two_sided(t, degrees) / 2;
  return t < 0 ? tail : 1 - tail;
}

double student_t_quantile(double p, double degrees) {
  require(p > 0 && p < 1 && degrees > 0, "statistics", "quantile {} of t with {} degrees", p,
          degrees);
  if (p == 0.5) return 0;
  if (p < 0.5) return -student_t_quantile(1 - p, degrees);
  double low = 0, high = 1;
  while (student_t_cdf(high, degrees) < p && high < 1e300) high *= 2;
  for (int i = 0; i < 200 && high - low > 1e-15 * high; ++i) {
    const double middle = (low + high) / 2;
    (student_t_cdf(middle, degrees) < p ? low : high) = middle;
  }
  return (low + high) / 2;
}

PairedDifference paired_difference(const std::vector<double>& first,
                                   const std::vector<double>& second) {
  require(first.size() == second.size() && !first.empty(), "statistics", "{} and {} values",
          first.size(), second.size());
  PairedDifference out;
  out.pairs = static_cast<int64_t>(first.size());
  const auto n = static_cast<double>(first.size());
  for (size_t i = 0; i < first.size(); ++i) out.mean += (first[i] - second[i]) / n;
  if (out.pairs < 2) return out;
  double squares = 0;
  for (size_t i = 0; i < first.size(); ++i) squares += std::pow(first[i] - second[i] - out.mean, 2);
  const double error = std::sqrt(squares / (n - 1) / n),
               reach = student_t_quantile(0.975, n - 1) * error;
  out.interval = {out.mean - reach, out.mean + reach};
  out.p = error > 0 ? two_sided(out.mean / error, n - 1) : out.mean == 0 ? 1 : 0;
  return out;
}

std::pair<double, double> central_95(std::vector<double> values) {
  require(!values.empty(), "statistics", "no values");
  std::sort(values.begin(), values.end());
  const auto percentile = [&](double p) {
    const double place = p * static_cast<double>(values.size() - 1);
    const auto below = static_cast<size_t>(place);
    const size_t above = std::min(below + 1, values.size() - 1);
    return values[below] + (place - std::floor(place)) * (values[above] - values[below]);
  };
  return {percentile(0.025), percentile(0.975)};
}

CrossedInterval crossed_interval(const std::vector<std::vector<double>>& values,
                                 int64_t resamples) {
  require(!values.empty() && !values[0].empty() && resamples > 0, "statistics", "no values");
  const size_t seeds = values.size(), blocks = values[0].size();
  for (const std::vector<double>& row : values)
    require(row.size() == blocks, "statistics", "rows of {} and {} blocks", blocks, row.size());
  const double all = std::pow(static_cast<double>(seeds), static_cast<double>(seeds)) *
                     std::pow(static_cast<double>(blocks), static_cast<double>(blocks));
  const bool every = all <= static_cast<double>(resamples);
  const int64_t count = every ? static_cast<int64_t>(all) : resamples;
  const RandomKey key = RandomKey(0).fold("crossed_interval");
  std::vector<double> means;
  for (int64_t resample = 0; resample < count; ++resample) {
    // the digits of its number in bases `seeds` and `blocks`, or draws
    auto rest = static_cast<uint64_t>(resample);
    const RandomKey own = key.fold(static_cast<uint64_t>(resample));
    const auto index = [&](uint64_t place, size_t size) {
      if (!every) return static_cast<size_t>((uint64_t{own.bits(place)} * size) >> 32);
      const auto digit = static_cast<size_t>(rest % size);
      rest /= size;
      return digit;
    };
    std::vector<double> weights(blocks);  // how often each block was taken
    std::vector<size_t> rows(seeds);
    for (size_t s = 0; s < seeds; ++s) rows[s] = index(s, seeds);
    for (size_t b = 0; b < blocks; ++b) weights[index(seeds + b, blocks)] += 1;
    double sum = 0;
    for (const size_t row : rows)
      for (size_t b = 0; b < blocks; ++b) sum += weights[b] * values[row][b];
    means.push_back(sum / static_cast<double>(seeds * blocks));
  }
  std::sort(means.begin(), means.end());
  const auto [low, high] = central_95(means);
  CrossedInterval out{low, high};
  const auto n = static_cast<double>(means.size());
  out.share_below =
      static_cast<double>(std::upper_bound(means.begin(), means.end(), 0.0) - means.begin()) / n;
  const double above =
      static_cast<double>(means.end() - std::lower_bound(means.begin(), means.end(), 0.0)) / n;
  out.p = std::min(1.0, 2 * std::min(out.share_below, above));
  return out;
}

std::vector<double> holm_adjusted(const std::vector<double>& p) {
  std::vector<size_t> order(p.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return p[a] < p[b]; });
  std::vector<double> out(p.size());
  double largest = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    largest = std::max(largest, static_cast<double>(order.size() - i) * p[order[i]]);
    out[order[i]] = std::min(1.0, largest);
  }
  return out;
}

}  // namespace tessera::train
