#include "tessera/ops/side_by_side.h"

#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>

#include "tessera/base/threads.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops::side_by_side_test {
namespace {

TEST(SideBySide, EveryRowOnceWhateverItCosts) {
  const int before = thread_count();
  for (const int threads : {1, 2, 3}) {
    set_thread_count(threads);
    for (const std::vector<int64_t>& costs :
         {std::vector<int64_t>{}, {5}, {1, 1}, {0, 0, 0}, {100, 1, 1, 1, 2}, {7, 7, 7, 7, 7}}) {
      std::vector<int> calls(costs.size(), 0);
      side_by_side(costs, [&](size_t i) {
        ++calls[i];
        EXPECT_FALSE(at::GradMode::is_enabled());
      });
      EXPECT_EQ(calls, std::vector<int>(costs.size(), 1));
    }
  }
  set_thread_count(before);
}

// what libtorch computes for a row among others has the bits that it has alone
TEST(SideBySide, KeepsDenormalsAsAlone) {
  const Tensor tiny = at::full({4}, 1e-30F) * 1e-10F;
  ASSERT_EQ(std::fpclassify(tiny[0].item<float>()), FP_SUBNORMAL);
  std::vector<Tensor> made(4);
  side_by_side({1, 1, 1, 1}, [&](size_t i) { made[i] = at::full({4}, 1e-30F) * 1e-10F; });
  for (const Tensor& t : made) EXPECT_TRUE(at::equal(t, tiny));
}

TEST(SideBySide, HandsOnAnError) {
  EXPECT_THROW(side_by_side({1, 1, 1},
                            [](size_t i) {
                              if (i == 1) throw std::runtime_error("x");
                            }),
               std::runtime_error);
}

}  // namespace
}  // namespace tessera::ops::side_by_side_test
