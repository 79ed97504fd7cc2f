#include "tessera/train/objective/preference/preference_loss.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

namespace tessera::train::preference_loss_test {
namespace {

// lp_c [-12, -7.5], lp_r [-15, -6], ref [-13, -7], [-14, -6.5], lengths (4, 5), (6, 3)
constexpr std::array<AnswerScore, 2> kChosen = {AnswerScore{-12, -13, 4}, {-7.5, -7, 5}},
                                     kRejected = {AnswerScore{-15, -14, 6}, {-6, -6.5, 3}};

struct Golden {
  PreferenceRecipe how;
  std::array<double, 2> loss, d_chosen, d_rejected;
};

/// Losses and derivatives by torch's autograd of the formulas, float64.
const Golden kGoldens[] = {
    {{}, {0.59813887, 0.74439666}, {-0.0450166, -0.05249792}, {0.0450166, 0.05249792}},
    {{.smoothing = 0.2},
     {0.63813887, 0.72439666},
     {-0.0250166, -0.03249792},
     {0.0250166, 0.03249792}},
    {{.loss = PreferenceLoss::ipo}, {9, 36}, {-6, -12}, {6, 12}},
    {{.loss = PreferenceLoss::ipo, .by_length = true},
     {21.00694444, 27.73777778},
     {-2.29166667, -2.10666667},
     {1.52777778, 3.51111111}},
    {{.loss = PreferenceLoss::hinge}, {0.8, 1.1}, {-0.1, -0.1}, {0.1, 0.1}},
    {{.loss = PreferenceLoss::hinge, .beta = 0.7}, {0, 1.7}, {0, -0.7}, {0, 0.7}},
    {{.loss = PreferenceLoss::simpo},
     {2.12692801, 0.69314718},
     {-0.44039854, -0.2},
     {0.29359903, 0.33333333}},
    {{.loss = PreferenceLoss::orpo},
     {3.09957426, 1.54349888},
     {-0.26658973, -0.20908075},
     {0.01144897, 0.01359788}},
};

TEST(PairLoss, GoldenLossesAndDerivatives) {
  for (const Golden& golden : kGoldens)
    for (size_t i = 0; i < 2; ++i) {
      SCOPED_TRACE(spec::enum_name(golden.how.loss));
      const PairLoss pair = pair_loss(kChosen[i], kRejected[i], golden.how);
      EXPECT_NEAR(pair.loss, golden.loss[i], 1e-8);
      EXPECT_NEAR(pair.d_chosen, golden.d_chosen[i], 1e-8);
      EXPECT_NEAR(pair.d_rejected, golden.d_rejected[i], 1e-8);
    }
}

TEST(PairLoss, RewardsAreWhatAnswersAreAheadOfTheReference) {
  const PairLoss sums = pair_loss(kChosen[0], kRejected[0], {});
  EXPECT_NEAR(sums.reward_chosen, 0.1, 1e-15);
  EXPECT_NEAR(sums.reward_rejected, -0.1, 1e-15);
  const PairLoss means = pair_loss(kChosen[0], kRejected[0], {.loss = PreferenceLoss::simpo});
  EXPECT_NEAR(means.reward_chosen, 2 * -3, 1e-15);
  EXPECT_NEAR(means.reward_rejected, 2 * -2.5, 1e-15);
}

TEST(PairLoss, TheChosenAnswersOwnLossIsAMeanOverItsTokens) {
  const PairLoss plain = pair_loss(kChosen[1], kRejected[1], {}),
                 added = pair_loss(kChosen[1], kRejected[1], {.nll_weight = 0.2});
  EXPECT_NEAR(added.loss, plain.loss + 0.2 * 1.5, 1e-15);
  EXPECT_NEAR(added.d_chosen, plain.d_chosen - 0.2 / 5, 1e-15);
  EXPECT_EQ(added.d_rejected, plain.d_rejected);
}

TEST(PairLoss, StaysFiniteWhereAnswersAreWorldsApart) {
  for (const auto loss : {PreferenceLoss::dpo, PreferenceLoss::simpo, PreferenceLoss::orpo})
    for (const double sign : {-1.0, 1.0}) {
      const PairLoss pair = pair_loss({-1e6 * (1 + sign), 0, 1}, {-1e6 * (1 - sign), 0, 1},
                                      {.loss = loss, .smoothing = 0.1});
      EXPECT_TRUE(std::isfinite(pair.loss) && std::isfinite(pair.d_chosen) &&
                  std::isfinite(pair.d_rejected));
    }
}

}  // namespace
}  // namespace tessera::train::preference_loss_test
