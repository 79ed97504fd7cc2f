#include "tessera/serve/scheduling_policy.h"

#include <vector>

#include <gtest/gtest.h>

namespace tessera::serve::scheduling_policy_test {
namespace {

using std::chrono::seconds;
using Clock = Turn::Clock;

const Clock::time_point kStart = Clock::time_point(seconds(1000));

Turn turn(const char* client, int64_t priority = 0, int64_t after = 0) {
  return {priority, client, kStart + seconds(after)};
}

TEST(TurnOrder, TheClientThatWasServedLeastGoesFirst) {
  TurnOrder order(false);
  order.set_active({"a", "b"});
  order.charge("a", 10);
  EXPECT_TRUE(order.before(turn("b", 0, 5), turn("a"), kStart));
  order.charge("b", 10);
  // equally served: by arrival
  EXPECT_TRUE(order.before(turn("a"), turn("b", 0, 5), kStart));
  // priorities do not count
  EXPECT_TRUE(order.before(turn("a", 9), turn("b", 0, 5), kStart));
}

TEST(TurnOrder, AbsenceEarnsNoCredit) {
  TurnOrder order(false);
  order.set_active({"a", "b"});
  order.charge("a", 100);
  order.charge("b", 40);
  order.set_active({"a", "b", "new"});
  EXPECT_EQ(order.served("new"), 40);
  // who stayed away returns at the least of those that are here, never below what it had
  order.set_active({"a"});
  order.set_active({"a", "b"});
  EXPECT_EQ(order.served("b"), 100);
  // where nobody stayed, counts are what they were
  order.set_active({});
  order.set_active({"c"});
  EXPECT_EQ(order.served("c"), 0);
}

TEST(TurnOrder, PrioritiesRiseByWaiting) {
  TurnOrder order(true);
  EXPECT_TRUE(order.before(turn("a", 1, 3), turn("b", 2), kStart + seconds(5)));
  EXPECT_EQ(order.rank(turn("b", 2), kStart + seconds(9)), 2);
  EXPECT_EQ(order.rank(turn("b", 2), kStart + seconds(25)), 0);
  // 20 seconds make up for two steps of priority
  EXPECT_TRUE(order.before(turn("b", 2), turn("a", 1, 20), kStart + seconds(20)));
}

TEST(TurnOrder, CountsOfManyClientsThatAreGoneAreForgotten) {
  TurnOrder order(false);
  for (int i = 0; i < 5000; ++i) order.charge("client " + std::to_string(i), 1);
  order.set_active({"client 7"});
  EXPECT_EQ(order.served("client 7"), 1);
  EXPECT_EQ(order.served("client 8"), 0);
}

TEST(StateBudget, HasSlotsAndBytes) {
  StateBudget budget(2, 100);
  EXPECT_TRUE(budget.fits(1000)) << "one sequence always fits";
  budget.add(60);
  EXPECT_TRUE(budget.fits(40));
  EXPECT_FALSE(budget.fits(41));
  budget.add(40);
  EXPECT_FALSE(budget.has_slot());
  EXPECT_FALSE(budget.fits(0));
  EXPECT_TRUE(budget.fits_without(1, 60, 60));
  // a paused one gives its slot away and keeps its bytes
  budget.pause();
  EXPECT_TRUE(budget.has_slot());
  EXPECT_FALSE(budget.fits(1));
  budget.remove(60, /*paused=*/true);
  EXPECT_TRUE(budget.fits(60));
  EXPECT_EQ(budget.bytes(), 40);
  EXPECT_TRUE(budget.may_grow(40, 1000)) << "alone it may take all";
  budget.add(50);
  EXPECT_TRUE(budget.may_grow(40, 50));
  EXPECT_FALSE(budget.may_grow(40, 51));
  StateBudget any(1, 0);
  any.add(int64_t{1} << 50);
  EXPECT_TRUE(any.may_grow(1, int64_t{1} << 60));
}

TEST(Preemption, TakesTheNewestOfTheHighestValues) {
  const auto at = [](int64_t after) { return kStart + seconds(after); };
  const std::vector<Preemptible> all = {
      {.priority = 1, .arrived = at(0), .bytes = 10},
      {.priority = 5, .arrived = at(1), .bytes = 20},
      {.priority = 5, .arrived = at(3), .bytes = 30},
      {.priority = 5, .arrived = at(3), .bytes = 40},
      {.priority = 9, .arrived = at(2), .bytes = 50, .exempt = true},
      {.priority = 9, .arrived = at(4), .bytes = 60, .paused = true},
      {.priority = 0, .arrived = at(1), .bytes = 70, .paused = true, .exempt = true}};
  EXPECT_EQ(preemption_victim(all, 0), 3u);
  EXPECT_EQ(preemption_victim(all, 5), std::nullopt);
  EXPECT_EQ(newest_paused(all), 5u);
  EXPECT_EQ(newest_paused(std::span(all).first(5)), std::nullopt);
  StateBudget budget(7, 280);
  for (const Preemptible& one : all) budget.add(one.bytes);
  // those above 1: 20 + 30 + 40 bytes
  EXPECT_TRUE(preemption_suffices(all, 1, budget, 90));
  EXPECT_FALSE(preemption_suffices(all, 1, budget, 91));
  EXPECT_FALSE(preemption_suffices(all, 5, budget, 1));
}

}  // namespace
}  // namespace tessera::serve::scheduling_policy_test
