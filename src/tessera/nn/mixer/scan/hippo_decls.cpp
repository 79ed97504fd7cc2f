#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <numeric>

#include "tessera/nn/mixer/scan/hippo.h"

namespace tessera::nn {
namespace {

using Complex = std::complex<double>;
using Matrix = std::vector<std::vector<Complex>>;

/// Jacobi's method: plane rotations until a Hermitian matrix is diagonal; the columns of `v` become
/// its eigenvectors.
void diagonalise(Matrix& a, Matrix& v) {
  const size_t n = a.size();
  for (int sweep = 0; sweep < 60; ++sweep) {
    double off = 0, all = 0;
    for (size_t i = 0; i < n; ++i)
      for (size_t k = 0; k < n; ++k) (i == k ? all : off) += std::norm(a[i][k]);
    if (off <= 1e-30 * (all + off)) return;
    for (size_t p = 0; p < n; ++p)
      for (size_t q = p + 1; q < n; ++q) {
        const double size = std::abs(a[p][q]);
        if (size == 0) continue;
        // the phase makes a_pq real, the rotation then makes it zero
        const Complex phase = a[p][q] / size;
        const double theta = (a[q][q].real() - a[p][p].real()) / (2 * size);
        const double t = (theta >= 0 ? 1 : -1) / (std::abs(theta) + std::hypot(theta, 1.0));
        const double c = 1 / std::hypot(t, 1.0), s = t * c;
        const auto rotate_columns = [&](Matrix& m) {
          for (size_t i = 0; i < n; ++i) {
            const Complex x = m[i][p], y = m[i][q] * std::conj(phase);
            m[i][p] = c * x - s * y;
            m[i][q] = s * x + c * y;
          }
        };
        rotate_columns(a);
        rotate_columns(v);
        for (size_t k = 0; k < n; ++k) {
          const Complex x = a[p][k], y = a[q][k] * phase;
          a[p][k] = c * x - s * y;
          a[q][k] = s * x + c * y;
        }
      }
  }
}

Hippo compute(int64_t n) {
  const auto size = static_cast<size_t>(n);
  const HippoMatrices legs = hippo_legs_matrices(n);
  const auto normal = [&](size_t i, size_t k) { return legs.a[i][k] + legs.p[i] * legs.p[k]; };
  // -i times A + P P^T without what rounding leaves of its symmetric part
  Matrix h(size, std::vector<Complex>(size)), v = h;
  for (size_t i = 0; i < size; ++i) {
    v[i][i] = 1;
    for (size_t k = 0; k < size; ++k) h[i][k] = Complex(0, (normal(k, i) - normal(i, k)) / 2);
  }
  diagonalise(h, v);
  std::vector<size_t> order(size);
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t i, size_t k) { return h[i][i].real() < h[k][k].real(); });
  Hippo out;
  for (size_t j = size / 2; j < size; ++j) {  // the positive half: one of each conjugate pair
    const size_t column = order[j];
    Complex p = 0, b = 0;
    for (size_t i = 0; i < size; ++i) {
      p += std::conj(v[i][column]) * legs.p[i];
      b += std::conj(v[i][column]) * legs.b[i];
    }
    out.lambda.emplace_back(-0.5, h[column][column].real());
    out.p.push_back(p);
    out.b.push_back(b);
  }
  return out;
}

}  // namespace

HippoMatrices hippo_legs_matrices(int64_t n) {
  const auto size = static_cast<size_t>(n);
  HippoMatrices out{std::vector<std::vector<double>>(size, std::vector<double>(size)), {}, {}};
  for (size_t i = 0; i < size; ++i) {
    const auto x = static_cast<double>(i);
    out.b.push_back(std::sqrt(2 * x + 1));
    out.p.push_back(std::sqrt(x + 0.5));
    for (size_t k = 0; k < i; ++k) out.a[i][k] = -out.b[i] * out.b[k];
    out.a[i][i] = -(x + 1);
  }
  return out;
}

Hippo hippo_legs(int64_t n) {
  // every layer of a model asks for the same one
  static std::mutex mutex;
  static std::map<int64_t, Hippo> known;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = known.find(n);
  return found != known.end() ? found->second : known.emplace(n, compute(n)).first->second;
}

}  // namespace tessera::nn
