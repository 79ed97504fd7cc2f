// HiPPO-LegS, the state matrix that S4 starts from, in the basis in which it is diagonal plus rank
// one. Gu et al. 2020, arXiv:2008.07669; Gu, Goel, Re 2021, arXiv:2111.00396, appendix C.
#pragma once

#include <complex>
#include <cstdint>
#include <vector>

namespace tessera::nn {

/// A[i][k] = -sqrt((2i+1)(2k+1)) below the diagonal, -(i+1) on it, 0 above; B[i] = sqrt(2i+1); and
/// P[i] = sqrt(i + 1/2), with which A + P P^T + 1/2 is skew-symmetric.
struct HippoMatrices {
  std::vector<std::vector<double>> a;
  std::vector<double> b, p;
};
HippoMatrices hippo_legs_matrices(int64_t n);

/// A = Lambda - P P^* and B of a state of n real dimensions, one member of each conjugate pair.
struct Hippo {
  std::vector<std::complex<double>> lambda, p, b;  // n / 2 each, by growing |imaginary part|
};

/// n even. -i times the skew-symmetric matrix is Hermitian, which is what is diagonalised (A's own
/// eigenvectors grow exponentially with n).
Hippo hippo_legs(int64_t n);

}  // namespace tessera::nn
