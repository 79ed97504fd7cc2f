#include "tessera/infer/engine/reasoning_counter.h"

#include <gtest/gtest.h>

namespace tessera::infer::reasoning_counter_test {
namespace {

constexpr int64_t kOpen = 1, kEnd1 = 2, kEnd2 = 3, kWord = 9;

ReasoningCounter behind(ReasoningBudget limit, const std::vector<int64_t>& answer) {
  ReasoningCounter budget(std::move(limit));
  for (const int64_t id : answer) budget.take(id);
  return budget;
}

TEST(ReasoningCounter, ClosesThoughtsThatAreTooLong) {
  const ReasoningBudget limit{.most = 2, .open = {kOpen}, .close = {kEnd1, kEnd2}};
  const auto next = [&](const std::vector<int64_t>& answer) {
    return behind(limit, answer).next({});
  };
  EXPECT_EQ(next({}), std::nullopt);
  EXPECT_EQ(next({kWord, kWord, kWord}), std::nullopt);  // no thoughts
  EXPECT_EQ(next({kOpen, kWord}), std::nullopt);
  EXPECT_EQ(next({kOpen, kWord, kWord}), kEnd1);
  EXPECT_EQ(next({kWord, kOpen, kWord, kWord, kEnd1}), kEnd2);
  EXPECT_EQ(next({kOpen, kWord, kWord, kEnd1, kEnd2}), std::nullopt);
  EXPECT_EQ(next({kOpen, kEnd1, kEnd2, kWord, kWord, kWord}), std::nullopt);
  // the prompt has opened them
  ReasoningBudget opened = limit;
  opened.opened = true;
  EXPECT_EQ(behind(opened, {kWord, kWord}).next({}), kEnd1);
  opened.most = 0;
  EXPECT_EQ(behind(opened, {}).next({}), kEnd1);
}

TEST(ReasoningCounter, GuessesCountAndAreForgotten) {
  const ReasoningBudget limit{.most = 2, .open = {kOpen}, .close = {kEnd1, kEnd2}};
  const ReasoningCounter budget = behind(limit, {kOpen, kWord});
  EXPECT_EQ(budget.next(std::vector<int64_t>{kWord}), kEnd1);
  EXPECT_EQ(budget.next(std::vector<int64_t>{kEnd1, kEnd2}), std::nullopt);
  EXPECT_EQ(budget.next({}), std::nullopt);
}

// A scan of the whole answer at every token would not end.
TEST(ReasoningCounter, LongAnswersTakeLinearTime) {
  constexpr int64_t kTokens = 3'000'000;
  ReasoningCounter budget(
      {.most = kTokens, .opened = true, .open = {kOpen}, .close = {kEnd1, kEnd2}});
  for (int64_t i = 0; i < kTokens; ++i) {
    ASSERT_EQ(budget.next({}), std::nullopt);
    budget.take(kWord);
  }
  EXPECT_EQ(budget.next({}), kEnd1);
}

}  // namespace
}  // namespace tessera::infer::reasoning_counter_test
