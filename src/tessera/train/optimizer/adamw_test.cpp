// Goldens: torch.optim.AdamW in float64, on W = gen(2,3; 0.5, 0.1) and G_t = gen(2,3; 0.7, t),
// where element number n of gen(shape; a, b) is sin(a n + b).
#include "tessera/train/optimizer/adamw.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tessera/base/rng.h"
#include "tessera/base/threads.h"
#include "tessera/train/optimizer/gradients.h"

namespace tessera::train::adamw_test {
namespace {

std::vector<float> gen(int n, double a, double b) {
  std::vector<float> values;
  for (int i = 0; i < n; ++i) values.push_back(static_cast<float>(std::sin(a * i + b)));
  return values;
}

ParameterInfo of(int64_t elements, double weight_decay = 0, double lr_factor = 1) {
  return {.name = "w", .shape = {elements}, .weight_decay = weight_decay, .lr_factor = lr_factor};
}

TEST(AdamW, AgainstTorch) {
  std::vector<float> w = gen(6, 0.5, 0.1);
  AdamW optimizer({of(6, 0.1)}, {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8});
  for (int t = 1; t <= 3; ++t) {
    const std::vector<float> g = gen(6, 0.7, t);
    const std::vector<Parameter> parameters{{w.data(), g.data()}};
    if (t == 1) {
      EXPECT_NEAR(norm_of(std::vector<Gradient>{{g.data(), 6}}), 1.86531155, 1e-6);
    }
    optimizer.update(parameters, {t, 0.01, 1});
    if (t == 1) {
      const double row[] = {0.08973358, 0.55407783, 0.88031615};
      for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(w[i], row[i], 2e-7);
    }
  }
  const double want[] = {0.07105135, 0.54025992, 0.87825965, 1.00189739, 0.88984385, 0.54017883};
  for (size_t i = 0; i < 6; ++i) EXPECT_NEAR(w[i], want[i], 3e-7);
}

std::vector<float> random_values(size_t n, uint64_t seed) {
  const RandomKey key(seed);
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i) values[i] = static_cast<float>(key.normal(i));
  return values;
}

TEST(AdamW, SameBitsForAnyThreadCount) {
  const int before = thread_count();
  std::vector<float> norms;
  std::vector<std::vector<float>> results;
  for (const int threads : {1, 2, 3, 7}) {
    set_thread_count(threads);
    std::vector<float> w1 = random_values(100'003, 1), w2 = random_values(17, 2);
    const std::vector<float> g1 = random_values(100'003, 3), g2 = random_values(17, 4);
    AdamW optimizer({of(100'003, 0.1), of(17)}, {});
    const std::vector<Parameter> parameters{{w1.data(), g1.data()}, {w2.data(), g2.data()}};
    norms.push_back(
        static_cast<float>(norm_of(std::vector<Gradient>{{g1.data(), 100'003}, {g2.data(), 17}})));
    optimizer.update(parameters, {1, 0.1, 0.5});
    w1.insert(w1.end(), w2.begin(), w2.end());
    results.push_back(w1);
  }
  set_thread_count(before);
  for (size_t i = 1; i < results.size(); ++i) {
    EXPECT_EQ(norms[i], norms[0]);
    EXPECT_EQ(results[i], results[0]);
  }
}

TEST(Gradients, NormIsThatOfDoubleAndDoesNotOverflow) {
  const std::vector<float> huge(40'000, 1e30f);
  EXPECT_NEAR(
      norm_of(std::vector<Gradient>{{huge.data(), 40'000}}) / (200 * static_cast<double>(1e30f)), 1,
      1e-12);
}

TEST(AdamW, DecayOnlyWhereDeclaredAndNothingWithoutGradient) {
  std::vector<float> a{1}, b{1}, c{1};
  const std::vector<float> zero{0};
  AdamW optimizer({of(1, 0.5), of(1), of(1, 0.5)}, {});
  optimizer.update(
      std::vector<Parameter>{{a.data(), zero.data()}, {b.data(), zero.data()}, {c.data(), nullptr}},
      {1, 0.1, 1});
  EXPECT_FLOAT_EQ(a[0], 0.95f);
  EXPECT_EQ(b[0], 1);
  EXPECT_EQ(c[0], 1);
}

TEST(AdamW, AGroupMultipliesTheRateAndWithItTheDecay) {
  std::vector<float> a{1}, b{1};
  const std::vector<float> g{2};
  AdamW whole({of(1, 0.5)}, {}), tenth({of(1, 0.5, 0.1)}, {});
  whole.update(std::vector<Parameter>{{a.data(), g.data()}}, {1, 0.01, 1});
  tenth.update(std::vector<Parameter>{{b.data(), g.data()}}, {1, 0.1, 1});
  EXPECT_FLOAT_EQ(a[0], b[0]);
  EXPECT_NEAR(a[0], 1 - 0.01 * 0.5 - 0.01, 1e-6);  // the first step is lr long
}

TEST(Gradients, NamesTheBadOneNearestToTheLoss) {
  const std::vector<float> good{1, 2, 3}, bad{1, std::numeric_limits<float>::infinity(), 3};
  const std::vector<Gradient> gradients{{bad.data(), 3}, {bad.data(), 3}, {good.data(), 3}, {}};
  EXPECT_FALSE(std::isfinite(norm_of(gradients)));
  EXPECT_EQ(last_nonfinite(gradients), 1);
}

}  // namespace
}  // namespace tessera::train::adamw_test
