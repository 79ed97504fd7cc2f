// Weights of early exits: definition, golden and curricula.
#include "tessera/train/objective/next_token/early_exit.h"

#include <gmock/gmock.h>

namespace tessera::train::early_exit_test {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;
using testing::Pointwise;

TEST(EarlyExit, WeighsLaterLayersMore) {
  EarlyExit exit;
  exit.scale = 0.2;
  exit.curriculum = ExitCurriculum::all;
  std::vector<double> e = {0, .2, .6, 1.2, 2, 3, 4.2, 11.2};
  for (double& value : e) value /= 22.4;
  EXPECT_THAT(exit.weights(8, 5, 100), Pointwise(DoubleNear(1e-12), e));
  EXPECT_THAT(
      exit.weights(4, 0, 1),
      Pointwise(DoubleNear(1e-8), std::vector<double>{0, 0.04545455, 0.13636364, 0.81818182}));
  exit.scale = 0;
  EXPECT_THAT(exit.weights(3, 0, 1), ElementsAre(0, 0, 1));
  EXPECT_THAT(exit.weights(1, 0, 1), ElementsAre(1));
}

std::vector<int> part(const EarlyExit& exit, int64_t step) {
  std::vector<int> out;
  for (const double weight : exit.weights(6, step, 120)) out.push_back(weight > 0 ? 1 : 0);
  return out;
}

TEST(EarlyExit, CurriculaSayWhichLayersTakePart) {
  EarlyExit exit;
  exit.scale = 1;
  exit.period = 3;
  // layer 0 has weight 0 whether it takes part or not
  EXPECT_THAT(part(exit, 0), ElementsAre(0, 0, 0, 1, 0, 1));
  EXPECT_THAT(part(exit, 4), ElementsAre(0, 1, 0, 0, 1, 1));
  EXPECT_THAT(part(exit, 5), ElementsAre(0, 0, 1, 0, 0, 1));
  exit.curriculum = ExitCurriculum::gradual;  // one more every ten updates
  EXPECT_THAT(part(exit, 0), ElementsAre(0, 0, 0, 0, 0, 1));
  EXPECT_THAT(part(exit, 10), ElementsAre(0, 0, 0, 0, 1, 1));
  EXPECT_THAT(part(exit, 39), ElementsAre(0, 0, 1, 1, 1, 1));
  EXPECT_THAT(part(exit, 119), ElementsAre(0, 1, 1, 1, 1, 1));
}

}  // namespace
}  // namespace tessera::train::early_exit_test
