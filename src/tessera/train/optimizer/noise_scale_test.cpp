#include "tessera/train/optimizer/noise_scale.h"

#include <cmath>
#include <random>

#include "tessera/train/optimizer/gradients.h"
#include "tessera/train/train_testing.h"

namespace tessera::train::noise_scale_test {
namespace {

/// By hand: S = (5 - 2) / (1/2 - 1/8) = 8, |G|^2 = 2 - 8/8 = 1; and of parts of 1 and of 3 tokens
/// S = (5 - 3) / (2/3 - 1/4) = 4.8, |G|^2 = 3 - 4.8/4 = 1.8.
TEST(NoiseScale, OfTwoSizesOfBatches) {
  NoiseScale equal, unequal;
  equal.add({{5, 2}, {5, 2}, {5, 2}, {5, 2}}, 2, 8);
  EXPECT_DOUBLE_EQ(equal.value().value(), 8);
  unequal.add({{7, 1}, {3, 3}}, 3, 4);
  EXPECT_NEAR(unequal.value().value(), 4.8 / 1.8, 1e-12);
  // both together, the first with 0.95 of the weight
  equal.add({{7, 1}, {3, 3}}, 3, 4);
  EXPECT_NEAR(equal.value().value(), (0.95 * 8 + 4.8) / (0.95 + 1.8), 1e-12);
}

TEST(NoiseScale, SaysNothingWhereNothingIsKnown) {
  NoiseScale scale;
  EXPECT_FALSE(scale.value());
  scale.add({{5, 2}}, 5, 2);  // one part is the whole
  scale.add({{5, 2}, {0, 0}}, 5, 2);
  EXPECT_FALSE(scale.value());
  scale.add({{8, 1}, {8, 1}}, 4, 2);  // noise alone
  EXPECT_FALSE(scale.value());
}

/// Gradients with |G|^2 = 4 and noise of trace 200 a token: the scale is 50 tokens.
TEST(NoiseScale, FindsThatOfKnownGradients) {
  constexpr int kSize = 50, kParts = 4, kTokens = 100;
  std::mt19937 random(3);
  std::normal_distribution<double> normal;
  NoiseScale scale;
  for (int measurement = 0; measurement < 400; ++measurement) {
    std::vector<NoiseScale::Small> small;
    std::vector<double> whole(kSize);
    for (int part = 0; part < kParts; ++part) {
      double square = 0;
      for (double& sum : whole) {
        const double g = std::sqrt(4.0 / kSize) + 2 * normal(random) / std::sqrt(kTokens);
        square += g * g;
        sum += g / kParts;
      }
      small.push_back({square, kTokens});
    }
    double square = 0;
    for (const double g : whole) square += g * g;
    scale.add(small, square, kParts * kTokens);
  }
  EXPECT_NEAR(scale.value().value(), 50, 8);
}

TEST(NoiseScale, GoesOnFromItsState) {
  NoiseScale one, two;
  one.add({{7, 1}, {3, 3}}, 3, 4);
  two.restore(json_of(one.to_json().dump()), "trainer.json");
  EXPECT_EQ(one.value(), two.value());
  expect_error(ErrorKind::file, "trainer.json: \"noise_scale.signal\" is missing",
               [&] { two.restore(json_of(R"({"noise": 1})"), "trainer.json"); });
}

TEST(Gradients, NormOfWhatWasAdded) {
  const std::vector<float> first{3, 4}, other{2}, second{6, 8};
  std::vector<std::vector<float>> before;
  std::vector<Gradient> now{{first.data(), 2}, {}};
  EXPECT_DOUBLE_EQ(norm_of_change(now, before), 5);
  EXPECT_DOUBLE_EQ(norm_of_change(now, before), 0);
  // one that was not there counts as zeros
  now = {{second.data(), 2}, {other.data(), 1}};
  EXPECT_DOUBLE_EQ(norm_of_change(now, before), std::sqrt(9.0 + 16 + 4));
}

}  // namespace
}  // namespace tessera::train::noise_scale_test
