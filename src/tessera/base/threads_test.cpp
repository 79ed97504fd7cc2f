#include "tessera/base/threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <vector>

#include "tessera/base/finest_grain.h"

namespace tessera::threads_test {
namespace {

using Body = std::function<void(int64_t, int64_t)>;

/// Both loops, with a grain.
const std::function<void(int64_t, int64_t, const Body&)> kLoops[] = {parallel_for,
                                                                     parallel_in_turn};

TEST(ParallelLoops, EveryNumberComesOnce) {
  for (const auto& loop : kLoops)
    for (const int64_t n : {0, 1, 2, 17, 1000})
      for (const int64_t grain : {0, 1, 3, 5000}) {
        std::vector<std::atomic<int>> met(static_cast<size_t>(n));
        loop(n, grain, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) ++met[static_cast<size_t>(i)];
        });
        for (const auto& times : met) EXPECT_EQ(times, 1) << n << " " << grain;
      }
}

TEST(ParallelLoops, NoRangeIsMuchShorterThanTheGrain) {
  for (const auto& loop : kLoops)
    loop(100, 30, [](int64_t begin, int64_t end) { EXPECT_GE(end - begin, 25); });
}

TEST(ParallelLoops, TheFinestGrainIsOne) {
  const int before = thread_count();
  set_thread_count(4);
  for (const auto& loop : kLoops) {
    std::atomic<int> ranges{0};
    const auto count = [&](int64_t, int64_t) { ++ranges; };
    loop(4, 1000, count);
    EXPECT_EQ(ranges.exchange(0), 1);
    {
      const FinestGrain finest;
      loop(4, 1000, count);
    }
    EXPECT_EQ(ranges.exchange(0), 4);
    loop(4, 1000, count);
    EXPECT_EQ(ranges, 1);
  }
  set_thread_count(before);
}

TEST(ParallelLoops, TheFirstExceptionComesThrough) {
  for (const auto& loop : kLoops)
    EXPECT_THROW(loop(64, 1,
                      [](int64_t begin, int64_t) {
                        if (begin == 0) throw std::runtime_error("no");
                      }),
                 std::runtime_error);
}

TEST(ParallelLoops, TinyNumbersAreZerosInsideOnly) {
#if !defined(__SSE2__) && !defined(__aarch64__)
  GTEST_SKIP() << "this processor's control of denormal numbers is not known";
#endif
  const auto product = [](float a, float b) {
    volatile float x = a, y = b;
    return x * y;
  };
  // a result, and an input, below 2^-126
  const auto tiny = [&] { return product(1e-30f, 1e-10f) + product(1e-40f, 1e10f); };
  for (const auto& loop : kLoops)
    for (const int64_t grain : {1, 5000}) {
      loop(64, grain, [&](int64_t, int64_t) {
        EXPECT_EQ(tiny(), 0.0f);
        loop(64, 1, [&](int64_t, int64_t) { EXPECT_EQ(tiny(), 0.0f); });
        EXPECT_EQ(tiny(), 0.0f);
      });
      EXPECT_GT(tiny(), 0.0f);
      EXPECT_THROW(loop(64, grain, [](int64_t, int64_t) { throw std::runtime_error("no"); }),
                   std::runtime_error);
      EXPECT_GT(tiny(), 0.0f);
    }
}

TEST(ParallelLoops, LoopsInsideLoopsCoverTheirNumbersToo) {
  for (const auto& loop : kLoops) {
    std::atomic<int64_t> sum{0};
    loop(8, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        loop(10, 1, [&](int64_t from, int64_t to) { sum += to - from; });
    });
    EXPECT_EQ(sum, 80);
  }
}

}  // namespace
}  // namespace tessera::threads_test
