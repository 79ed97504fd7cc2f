// HiPPO-LegS, the state matrix that S4 starts from, in the basis in which it is diagonal plus rank
// one. Gu et al. 2020, arXiv:2008.07669; Gu, Goel, Re 2021, arXiv:2111.00396, appendix C.
#pragma once

#include <complex>
#include <cstdint>
#include <vector>

namespace tessera::nn {

/// A = Lambda - P P^* and B of a state of n real dimensions, one member of each conjugate pair.
struct Hippo {
  std::vector<std::complex<double>> lambda, p, b;  // n / 2 each, by growing |imaginary part|
};

/// n even. With A[i][k] = -sqrt((2i+1)(2k+1)) below the diagonal, -(i+1) on it, 0 above, and
/// P[i] = sqrt(i + 1/2): A + P P^T + 1/2 is skew-symmetric, hence -i times it Hermitian, which is
/// what is diagonalised (A's own eigenvectors grow exponentially with n).
Hippo hippo_legs(int64_t n);

}  // namespace tessera::nn
