#include "tessera/infer/evaluation/estimate.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tessera::infer::estimate_test {
namespace {

// scipy 1.17: scipy.stats.binomtest(hits, n).proportion_ci(method="wilson")
TEST(Estimate, ProportionsHaveWilsonsInterval) {
  struct Case {
    int64_t hits, examples;
    double low, high;
  };
  for (const Case& c : {Case{3, 5, 0.23072428127601297, 0.8823792257673521},
                        {0, 10, 0, 0.27753279986288926},
                        {10, 10, 0.7224672001371109, 1},
                        {63, 100, 0.5322052958094291, 0.7181763946567546}}) {
    const Estimate found = proportion(c.hits, c.examples);
    EXPECT_NEAR(found.low, c.low, 1e-12);
    EXPECT_NEAR(found.high, c.high, 1e-12);
  }
  // of 1, 0, 1, 1, 0
  EXPECT_NEAR(proportion(3, 5).standard_error, 0.24494897, 1e-8);
  EXPECT_NEAR(standard_error(std::vector<double>{1, 0, 1, 1, 0}), 0.24494897, 1e-8);
  EXPECT_EQ(standard_error(std::vector<double>{1}), 0);
}

TEST(Estimate, BootstrapOfAMeanIsNearTheNormalInterval) {
  std::vector<double> values;
  for (int i = 0; i < 400; ++i) values.push_back(i % 20);
  const Estimate found = mean_of(values, 7);
  const double half = 1.96 * std::sqrt((20.0 * 20 - 1) / 12 / 400);
  EXPECT_DOUBLE_EQ(found.value, 9.5);
  EXPECT_NEAR(found.low, 9.5 - half, 0.1 * half);
  EXPECT_NEAR(found.high, 9.5 + half, 0.1 * half);
  EXPECT_EQ(found.to_json(), mean_of(values, 7).to_json());
  EXPECT_NE(found.low, mean_of(values, 8).low);
  const Estimate same = mean_of(std::vector<double>(9, 0.25), 1);
  EXPECT_EQ(same.low, 0.25);
  EXPECT_EQ(same.high, 0.25);
}

}  // namespace
}  // namespace tessera::infer::estimate_test
