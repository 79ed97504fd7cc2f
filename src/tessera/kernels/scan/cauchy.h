// Cauchy sums of S4's generating function, and their gradients. Gu, Goel, Re 2021,
// arXiv:2111.00396, section 3.3. double.
#pragma once

#include <cstdint>

namespace tessera::kernels {

constexpr int64_t kCauchyWeights = 4;  // sums that share their poles

/// Per channel, over pairs of conjugate poles of which one member is given:
///   S_k(z) = sum_m w_km / (z - lambda_m) + conj(w_km) / (z - conj(lambda_m))
/// Complex numbers are pairs of doubles; all arrays are dense. No point may meet a pole.
struct CauchySums {
  int64_t H = 0, M = 0, L = 0;      // channels, pairs of poles, points
  const double* poles = nullptr;    // lambda [H, M, 2]
  const double* weights = nullptr;  // w [H, kCauchyWeights, M, 2]
  const double* points = nullptr;   // z [H, L, 2]
};
/// -> sums [H, kCauchyWeights, L, 2].
void cauchy_sums(const CauchySums& in, double* sums);

/// d/dRe + i d/dIm of a real function of the sums, from the same of the sums.
struct CauchyGradients {
  const double* d_sums = nullptr;  // [H, kCauchyWeights, L, 2]
  double* d_poles = nullptr;       // [H, M, 2]
  double* d_weights = nullptr;     // [H, kCauchyWeights, M, 2]
  double* d_points = nullptr;      // [H, L, 2]
};
void cauchy_gradients(const CauchySums& in, const CauchyGradients& gradients);

}  // namespace tessera::kernels
