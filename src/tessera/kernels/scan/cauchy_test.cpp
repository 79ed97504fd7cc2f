#include "tessera/kernels/scan/cauchy.h"

#include <complex>

#include "tessera/kernels/kernels_testing.h"

namespace tessera::kernels::cauchy_test {
namespace {

using Complex = std::complex<double>;
using Numbers = std::vector<Complex>;

struct Case {
  int64_t H, M, L;
  Numbers poles, weights, points;

  Case(int64_t h, int64_t m, int64_t l) : H(h), M(m), L(l) {
    const auto draw = [](int64_t n, uint64_t seed, const auto& made) {
      Numbers out;
      const RandomKey key(seed);
      for (uint64_t i = 0; i < static_cast<uint64_t>(n); ++i)
        out.push_back(made(key.normal(2 * i), key.normal(2 * i + 1)));
      return out;
    };
    // poles to the left, points to the right; both may be far from the real axis
    poles = draw(H * M, 1, [](double a, double b) { return Complex(-0.5 - std::abs(a), 30 * b); });
    points = draw(H * L, 2, [](double a, double b) { return Complex(std::abs(a), 30 * b); });
    weights = draw(H * kCauchyWeights * M, 3, [](double a, double b) { return Complex(a, b); });
  }
  CauchySums call() const {
    const auto data = [](const Numbers& x) { return reinterpret_cast<const double*>(x.data()); };
    return {H, M, L, data(poles), data(weights), data(points)};
  }
  Complex definition(int64_t h, int64_t k, int64_t l) const {
    const Complex z = points[at(h * L + l)];
    Complex sum = 0;
    for (int64_t m = 0; m < M; ++m) {
      const Complex w = weights[at((h * kCauchyWeights + k) * M + m)], pole = poles[at(h * M + m)];
      sum += w / (z - pole) + std::conj(w) / (z - std::conj(pole));
    }
    return sum;
  }
};

template <class Body>
void for_cases(const Body& body) {
  for (const int64_t length : {1, 2, 5, 8, 17})
    for (const int64_t pairs : {1, 6}) {
      SCOPED_TRACE(length);
      body(Case(3, pairs, length));
    }
}

TEST(Cauchy, SumsAreTheirDefinition) {
  for_cases([](const Case& c) {
    on_every_target([&] {
      Numbers got(at(c.H * kCauchyWeights * c.L));
      cauchy_sums(c.call(), reinterpret_cast<double*>(got.data()));
      for (int64_t h = 0; h < c.H; ++h)
        for (int64_t k = 0; k < kCauchyWeights; ++k)
          for (int64_t l = 0; l < c.L; ++l)
            EXPECT_LT(std::abs(got[at((h * kCauchyWeights + k) * c.L + l)] - c.definition(h, k, l)),
                      1e-13)
                << h << " " << k << " " << l;
    });
  });
}

// of sum Re(conj(G) S), element by element, against its central differences
TEST(Cauchy, GradientsAgainstDifferences) {
  for_cases([](const Case& given) {
    Case c = given;
    Numbers d_sums;
    const RandomKey key(9);
    for (int64_t i = 0; i < c.H * kCauchyWeights * c.L; ++i)
      d_sums.emplace_back(key.normal(2 * at(i)), key.normal(2 * at(i) + 1));
    const auto loss = [&] {
      double sum = 0;
      for (int64_t h = 0; h < c.H; ++h)
        for (int64_t k = 0; k < kCauchyWeights; ++k)
          for (int64_t l = 0; l < c.L; ++l)
            sum += std::real(std::conj(d_sums[at((h * kCauchyWeights + k) * c.L + l)]) *
                             c.definition(h, k, l));
      return sum;
    };
    Numbers* const inputs[] = {&c.poles, &c.weights, &c.points};
    std::vector<Numbers> want;
    for (Numbers* x : inputs) {
      want.emplace_back();
      for (Complex& number : *x) {
        const Complex kept = number;
        const auto slope = [&](Complex step) {
          number = kept + step;
          const double up = loss();
          number = kept - step;
          const double down = loss();
          number = kept;
          return (up - down) / (2 * std::abs(step));
        };
        want.back().emplace_back(slope({1e-5, 0}), slope({0, 1e-5}));
      }
    }
    on_every_target([&] {
      std::vector<Numbers> got;
      for (const Numbers* x : inputs) got.emplace_back(x->size());
      const auto data = [](Numbers& x) { return reinterpret_cast<double*>(x.data()); };
      cauchy_gradients(c.call(), {data(d_sums), data(got[0]), data(got[1]), data(got[2])});
      for (size_t x = 0; x < got.size(); ++x)
        for (size_t i = 0; i < got[x].size(); ++i)
          EXPECT_LT(std::abs(got[x][i] - want[x][i]), 1e-7) << "input " << x << ", element " << i;
    });
  });
}

}  // namespace
}  // namespace tessera::kernels::cauchy_test
