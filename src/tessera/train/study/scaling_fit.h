// Scaling law of losses over model sizes and training tokens, as Chinchilla fits it. Torch-free.
//
//   L(N, D) = E + A / N^alpha + B / D^beta
//
// Minimizes the sum over runs of Huber_1e-3( LSE(a - alpha ln N, b - beta ln D, e) - ln L ) with
// A = exp(a), B = exp(b), E = exp(e), by L-BFGS with the exact gradient from a grid of starts
// (Hoffmann et al. 2022, arXiv:2203.15556, approach 3). The sum, not the mean: a mean stops early
// by the optimizer's tolerance (Besiroglu et al. 2024, arXiv:2404.10102).
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace tessera::train {

/// A finished run of a whole schedule.
struct ScalingRun {
  double parameters = 0;  // N
  double tokens = 0;      // D
  double loss = 0;        // nats per token
};

/// The coefficients of L(N, D).
struct ScalingFit {
  double e = 0, a = 0, b = 0;  // E, A, B
  double alpha = 0, beta = 0;
  double objective = 0;  // at the minimum

  /// L(N, D).
  double loss(double parameters, double tokens) const;
  /// N and D of the least loss for `flops` = 6 N D of training:
  ///   N = G (C/6)^(beta/(alpha+beta)), G = (alpha A/(beta B))^(1/(alpha+beta)), D = C/(6 N)
  std::pair<double, double> optimum(double flops) const;
};

/// Whether there are at least 3 sizes and 3 numbers of tokens.
bool can_fit_scaling(const std::vector<ScalingRun>& runs);
/// The fit of all runs. Throws Error(usage) unless there are at least 3 sizes and 3 numbers of
/// tokens, all above 0, and losses above 0.
ScalingFit fit_scaling(const std::vector<ScalingRun>& runs);

/// Fits of `resamples` bootstrap samples of the runs (with replacement; a sample with fewer than 3
/// sizes or 3 numbers of tokens is drawn again). `fit`, of all runs, is where each starts.
std::vector<ScalingFit> bootstrap_scaling(const std::vector<ScalingRun>& runs,
                                          const ScalingFit& fit,
                                          int64_t resamples,
                                          uint64_t seed = 0);

}  // namespace tessera::train
