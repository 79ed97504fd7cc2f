// HiPPO-LegS in its diagonal basis against values computed independently in double.
#include "tessera/nn/mixer/scan/hippo.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tessera::nn::hippo_plain_test {
namespace {

TEST(Hippo, GoldenOfFourDimensions) {
  const Hippo h = hippo_legs(4);
  const double im[] = {0.55650112, 4.60329301}, b[] = {0.96693117, 2.65801507},
               p[] = {0.68372359, 1.87950048};
  ASSERT_EQ(h.lambda.size(), 2U);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(h.lambda[i].real(), -0.5);
    EXPECT_NEAR(h.lambda[i].imag(), im[i], 1e-8);
    EXPECT_NEAR(std::abs(h.b[i]), b[i], 1e-8);
    EXPECT_NEAR(std::abs(h.p[i]), p[i], 1e-8);
  }
}

TEST(Hippo, GoldenMatrices) {
  const HippoMatrices legs = hippo_legs_matrices(4);
  const double a[4][4] = {{-1, 0, 0, 0},
                          {-1.73205081, -2, 0, 0},
                          {-2.23606798, -3.87298335, -3, 0},
                          {-2.64575131, -4.58257569, -5.91607978, -4}},
               b[] = {1, 1.73205081, 2.23606798, 2.64575131},
               p[] = {0.70710678, 1.22474487, 1.58113883, 1.87082869},
               upper[4][4] = {{0, 0.86602540, 1.11803399, 1.32287566},
                              {0, 0, 1.93649167, 2.29128785},
                              {0, 0, 0, 2.95803989},
                              {0, 0, 0, 0}};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(legs.b[i], b[i], 1e-8);
    EXPECT_NEAR(legs.p[i], p[i], 1e-8);
    for (size_t k = 0; k < 4; ++k) {
      EXPECT_NEAR(legs.a[i][k], a[i][k], 1e-8);
      const double skew = i == k ? -0.5 : i < k ? upper[i][k] : -upper[k][i];
      EXPECT_NEAR(legs.a[i][k] + legs.p[i] * legs.p[k], skew, 1e-8);
    }
  }
}

/// Traces and norms do not depend on the basis: sum of lambda - |p|^2 is A's trace, -(1 + .. + n);
/// |b|^2 is the sum of 2 i + 1; p^* b is the sum of P B, whose phases say that p and b belong
/// together.
TEST(Hippo, InvariantsOfManyDimensions) {
  for (const int64_t n : {2, 6, 64}) {
    const Hippo h = hippo_legs(n);
    double trace = 0, norm = 0;
    std::complex<double> product = 0;
    for (size_t i = 0; i < h.lambda.size(); ++i) {
      trace += 2 * (h.lambda[i].real() - std::norm(h.p[i]));
      norm += 2 * std::norm(h.b[i]);
      product += 2.0 * std::conj(h.p[i]) * h.b[i];
      EXPECT_GT(h.lambda[i].imag(), i > 0 ? h.lambda[i - 1].imag() : 0);
    }
    const auto d = static_cast<double>(n);
    EXPECT_NEAR(trace, -d * (d + 1) / 2, 1e-10 * d * d);
    EXPECT_NEAR(norm, d * d, 1e-10 * d * d);
    EXPECT_NEAR(product.real(), std::sqrt(0.5) * d * d, 1e-10 * d * d);
    EXPECT_NEAR(product.imag(), 0, 1e-10 * d * d);
  }
}

}  // namespace
}  // namespace tessera::nn::hippo_plain_test
