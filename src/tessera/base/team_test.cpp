#include "tessera/base/team.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

#include "tessera/base/threads.h"

namespace tessera::team_test {
namespace {

class TeamOf : public testing::TestWithParam<int> {
 protected:
  TeamOf() { set_thread_count(GetParam()); }
  ~TeamOf() override { set_thread_count(before_); }

 private:
  int before_ = thread_count();
};

TEST_P(TeamOf, SharesCoverEverythingOnce) {
  for (const int64_t n : {0, 1, 2, 7, 100}) {
    std::vector<int> met(static_cast<size_t>(n));
    work_together([&](Team& team) {
      const Team::Share mine = team.share(n);
      for (int64_t i = mine.begin; i < mine.end; ++i) ++met[static_cast<size_t>(i)];
    });
    for (const int times : met) EXPECT_EQ(times, 1) << n;
  }
}

// each step reads what all threads wrote in the one before
TEST_P(TeamOf, WhatWasWrittenBeforeWaitingIsSeen) {
  constexpr int kSteps = 2000;
  std::vector<int64_t> sums(kSteps + 1, 0);
  std::vector<int64_t> parts(64, 1);
  int64_t size = 0;
  work_together([&](Team& team) {
    if (team.index() == 0) size = team.size();
    for (int step = 0; step < kSteps; ++step) {
      if (team.index() == step % team.size())
        for (int64_t i = 0; i < team.size(); ++i) sums[step + 1] += parts[i];
      team.wait();
      parts[team.index()] = sums[step + 1] % 1000 + team.index();
      team.wait();
    }
  });
  int64_t expected = size;
  for (int step = 1; step <= kSteps; ++step) {
    ASSERT_EQ(sums[step], expected) << step;
    expected = size * (expected % 1000) + size * (size - 1) / 2;
  }
}

TEST_P(TeamOf, AnExceptionEndsThoseThatWait) {
  EXPECT_THROW(work_together([](Team& team) {
                 team.wait();
                 if (team.index() == 0) throw std::runtime_error("no");
                 team.wait();
                 team.wait();
               }),
               std::runtime_error);
}

TEST_P(TeamOf, WithinAParallelLoopOneThreadIsATeam) {
  parallel_for(8, 1, [](int64_t, int64_t) {
    if (thread_count() == 1) return;
    work_together([](Team& team) {
      EXPECT_EQ(team.size(), 1);
      team.wait();
    });
  });
}

TEST_P(TeamOf, DenormalNumbersAreZeros) {
  std::vector<float> products(64, 1);
  work_together([&](Team& team) {
    volatile float small = 1e-30f;
    products[team.index()] = small * 1e-10f;
    if (team.index() == 0)
      for (size_t i = static_cast<size_t>(team.size()); i < products.size(); ++i) products[i] = 0;
  });
  for (const float product : products) EXPECT_EQ(product, 0);
}

INSTANTIATE_TEST_SUITE_P(Threads, TeamOf, testing::Values(1, 2, 5));

}  // namespace
}  // namespace tessera::team_test
