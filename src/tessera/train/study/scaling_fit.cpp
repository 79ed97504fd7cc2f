#include "tessera/train/study/scaling_fit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/rng.h"

namespace tessera::train {
namespace {

/// a, b, e, alpha, beta.
using Point = std::array<double, 5>;

double dot(const Point& x, const Point& y) {
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) sum += x[i] * y[i];
  return sum;
}

Point along(const Point& x, double step, const Point& direction) {
  Point out = x;
  for (size_t i = 0; i < x.size(); ++i) out[i] += step * direction[i];
  return out;
}

/// The objective and its gradient.
double value_of(const std::vector<ScalingRun>& runs, const Point& x, Point& gradient) {
  constexpr double kDelta = 1e-3;
  const auto [a, b, e, alpha, beta] = x;
  double sum = 0;
  gradient = {};
  for (const ScalingRun& run : runs) {
    const double ln_n = std::log(run.parameters), ln_d = std::log(run.tokens);
    const std::array<double, 3> terms{a - alpha * ln_n, b - beta * ln_d, e};
    const double top = *std::max_element(terms.begin(), terms.end());
    std::array<double, 3> share{};
    double mass = 0;
    for (size_t k = 0; k < 3; ++k) mass += share[k] = std::exp(terms[k] - top);
    const double rest = top + std::log(mass) - std::log(run.loss);
    const bool inner = std::fabs(rest) <= kDelta;
    sum += inner ? rest * rest / 2 : kDelta * (std::fabs(rest) - kDelta / 2);
    const double slope = inner ? rest : std::copysign(kDelta, rest);
    const double of_n = slope * share[0] / mass, of_d = slope * share[1] / mass;
    gradient[0] += of_n;
    gradient[1] += of_d;
    gradient[2] += slope * share[2] / mass;
    gradient[3] -= of_n * ln_n;
    gradient[4] -= of_d * ln_d;
  }
  return sum;
}

struct Minimum {
  Point x{};
  double value = 0;
};

/// L-BFGS (Nocedal, Wright 2006, algorithm 7.5) with the weak Wolfe conditions by bisection.
Minimum minimum_from(const std::vector<ScalingRun>& runs, const Point& start) {
  constexpr int kSteps = 2000, kTrials = 60;
  constexpr size_t kMemory = 10;
  constexpr double kDecrease = 1e-4, kCurvature = 0.9, kTolerance = 1e-18;
  Minimum at{start, 0};
  Point gradient;
  at.value = value_of(runs, at.x, gradient);
  std::deque<std::pair<Point, Point>> history;  // steps and changes of the gradient
  for (int step = 0; step < kSteps; ++step) {
    // direction: two loops over the history
    Point direction = gradient;
    std::vector<double> weights;
    for (auto pair = history.rbegin(); pair != history.rend(); ++pair) {
      const double weight = dot(pair->first, direction) / dot(pair->first, pair->second);
      weights.push_back(weight);
      direction = along(direction, -weight, pair->second);
    }
    if (!history.empty()) {
      const auto& [s, y] = history.back();
      const double scale = dot(s, y) / dot(y, y);
      for (double& one : direction) one *= scale;
    }
    for (size_t i = 0; i < history.size(); ++i) {
      const auto& [s, y] = history[i];
      const double weight = dot(y, direction) / dot(s, y);
      direction = along(direction, weights[history.size() - 1 - i] - weight, s);
    }
    for (double& one : direction) one = -one;
    const double slope = dot(gradient, direction);
    if (!(slope < 0)) break;
    // line search
    double low = 0, high = INFINITY, length = 1;
    Point next_gradient{};
    Minimum next = at;
    bool found = false;
    for (int trial = 0; trial < kTrials && !found; ++trial) {
      next.x = along(at.x, length, direction);
      next.value = value_of(runs, next.x, next_gradient);
      if (!(next.value <= at.value + kDecrease * length * slope))
        high = length;
      else if (dot(next_gradient, direction) < kCurvature * slope)
        low = length;
      else
        found = true;
      if (!found) length = std::isinf(high) ? 2 * length : (low + high) / 2;
    }
    if (!found && !(next.value < at.value)) break;
    const Point s = along(next.x, -1, at.x), y = along(next_gradient, -1, gradient);
    if (dot(s, y) > 1e-30) {
      history.emplace_back(s, y);
      if (history.size() > kMemory) history.pop_front();
    }
    const double gain = at.value - next.value;
    at = next;
    gradient = next_gradient;
    if (gain <= kTolerance * std::max(1.0, std::fabs(at.value))) break;
  }
  return at;
}

ScalingFit fit_of(const Minimum& best) {
  return {.e = std::exp(best.x[2]),
          .a = std::exp(best.x[0]),
          .b = std::exp(best.x[1]),
          .alpha = best.x[3],
          .beta = best.x[4],
          .objective = best.value};
}

void check_runs(const std::vector<ScalingRun>& runs) {
  for (const ScalingRun& run : runs)
    if (!(run.parameters > 0) || !(run.tokens > 0) || !(run.loss > 0) || !std::isfinite(run.loss))
      fail(ErrorKind::usage, "scaling",
           "a run of {:g} parameters and {:g} tokens with loss {:g}; expected numbers above 0",
           run.parameters, run.tokens, run.loss);
  if (!can_fit_scaling(runs))
    fail(ErrorKind::usage, "scaling",
         "{} runs; expected at least 3 model sizes and 3 numbers of training tokens", runs.size());
}

}  // namespace

bool can_fit_scaling(const std::vector<ScalingRun>& runs) {
  constexpr size_t kFewest = 3;
  std::set<double> sizes, tokens;
  for (const ScalingRun& run : runs) {
    sizes.insert(run.parameters);
    tokens.insert(run.tokens);
  }
  return sizes.size() >= kFewest && tokens.size() >= kFewest;
}

double ScalingFit::loss(double parameters, double tokens) const {
  return e + a * std::pow(parameters, -alpha) + b * std::pow(tokens, -beta);
}

std::pair<double, double> ScalingFit::optimum(double flops) const {
  const double g = std::pow(alpha * a / (beta * b), 1 / (alpha + beta));
  const double parameters = g * std::pow(flops / 6, beta / (alpha + beta));
  return {parameters, flops / (6 * parameters)};
}

ScalingFit fit_scaling(const std::vector<ScalingRun>& runs) {
  check_runs(runs);
  Minimum best{{}, INFINITY};
  for (const double a : {0.0, 10.0, 20.0})
    for (const double b : {0.0, 10.0, 20.0})
      for (const double e : {-1.0, 0.0, 1.0})
        for (const double alpha : {0.0, 0.5, 1.0})
          for (const double beta : {0.0, 0.5, 1.0}) {
            const Minimum found = minimum_from(runs, {a, b, e, alpha, beta});
            if (found.value < best.value) best = found;
          }
  return fit_of(best);
}

std::vector<ScalingFit> bootstrap_scaling(const std::vector<ScalingRun>& runs,
                                          const ScalingFit& fit,
                                          int64_t resamples,
                                          uint64_t seed) {
  check_runs(runs);
  // a coefficient may have vanished, as exp() of a large negative number
  const auto log_of = [](double x) { return std::log(std::max(x, 1e-300)); };
  const Point start{log_of(fit.a), log_of(fit.b), log_of(fit.e), fit.alpha, fit.beta};
  const RandomKey key = RandomKey(seed).fold("scaling");
  const auto n = static_cast<uint64_t>(runs.size());
  std::vector<ScalingFit> out;
  uint64_t draw = 0;
  while (std::ssize(out) < resamples) {
    std::vector<ScalingRun> sample;
    for (uint64_t i = 0; i < n; ++i)
      sample.push_back(runs[static_cast<size_t>(uint64_t{key.bits(draw++)} * n >> 32)]);
    if (can_fit_scaling(sample)) out.push_back(fit_of(minimum_from(sample, start)));
  }
  return out;
}

}  // namespace tessera::train
