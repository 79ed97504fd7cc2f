// What the tests of ops share: the generator of the golden inputs, and comparisons.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

#include "tessera/ops/tensor.h"

namespace tessera::ops {

/// Element n, in row-major order, is sin(a n + b).
inline Tensor gen(const std::vector<int64_t>& shape, double a, double b) {
  int64_t n = 1;
  for (const int64_t size : shape) n *= size;
  return at::sin(at::arange(n, at::kDouble) * a + b).reshape(shape);
}

inline Tensor tensor(const std::vector<double>& values, const std::vector<int64_t>& shape) {
  return at::tensor(values, at::kDouble).reshape(shape);
}
inline Tensor tensor(const std::vector<double>& values) {
  return at::tensor(values, at::kDouble);
}

inline void expect_near(const Tensor& got,
                        const Tensor& want,
                        double tolerance,
                        const char* what = "") {
  ASSERT_EQ(got.sizes(), want.sizes()) << what;
  const Tensor error = (got.detach().to(at::kDouble) - want.detach().to(at::kDouble)).abs();
  EXPECT_TRUE(at::isfinite(got).all().item<bool>()) << what << "\n" << got;
  EXPECT_LE(error.max().item<double>(), tolerance) << what << "\ngot\n"
                                                   << got << "\nwant\n"
                                                   << want;
}

/// Runs f on the plain form in double within `tolerance`, and on the kernel within float32's
/// rounding.
inline void expect_both(const std::function<Tensor(at::ScalarType)>& f,
                        const Tensor& want,
                        double tolerance) {
  expect_near(f(at::kDouble), want, tolerance, "double");
  const at::NoGradGuard no_gradients;
  expect_near(f(at::kFloat), want, 2e-6 * std::max(1.0, want.abs().max().item<double>()), "kernel");
}

}  // namespace tessera::ops
