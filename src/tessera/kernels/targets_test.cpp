#include <cstdlib>

#include "tessera/base/error.h"
#include "tessera/kernels/kernels_testing.h"
#include "tessera/kernels/weights/matmul.h"

namespace tessera::kernels::targets_test {
namespace {

TEST(Targets, AreListedBestFirstAndEndWithThePortableOne) {
  const auto names = available_targets();
  ASSERT_FALSE(names.empty());
  EXPECT_EQ(names.front(), current_target());
  EXPECT_EQ(names.back(), "EMU128");
  EXPECT_THROW(TargetScope("AVX1024"), Error);
}

// Eight lanes add in another order than four: if the scope did nothing, all bits would agree.
TEST(Targets, ScopeReallyChangesTheCode) {
  const auto names = available_targets();
  if (names.size() < 2) GTEST_SKIP() << "only the portable target here";
  const Values x(1000, 1), w(64 * 1000, 2);
  std::vector<float> best(64), narrow(64);
  matmul(x.data(), 1, 1000, 1000, DType::f32, w.data(), 64, nullptr, best.data(), 64);
  {
    const TargetScope scope("EMU128");
    EXPECT_EQ(current_target(), "EMU128");
    matmul(x.data(), 1, 1000, 1000, DType::f32, w.data(), 64, nullptr, narrow.data(), 64);
  }
  EXPECT_EQ(current_target(), names.front());
  EXPECT_NE(best, narrow);
}

// In a process of its own, for the limit is read once.
TEST(Targets, AskingForTheTargetLeavesTheLimit) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto product = [] {
    const Values x(1000, 1), w(64 * 1000, 2);
    std::vector<float> y(64);
    matmul(x.data(), 1, 1000, 1000, DType::f32, w.data(), 64, nullptr, y.data(), 64);
    return y;
  };
  const auto check = [&] {
    setenv("TESSERA_CPU", "generic", 1);
    const bool named = current_target() == "EMU128";
    const std::vector<float> limited = product();
    const TargetScope scope(current_target());
    std::exit(named && limited == product() ? 0 : 1);
  };
  EXPECT_EXIT(check(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace tessera::kernels::targets_test
