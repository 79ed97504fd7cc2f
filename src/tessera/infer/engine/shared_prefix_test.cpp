#include "tessera/infer/engine/shared_prefix.h"

#include <gtest/gtest.h>

namespace tessera::infer::shared_prefix_test {
namespace {

using Ids = std::vector<int64_t>;

/// "row@at" of each sequence, "-" where it waits for none.
std::vector<std::string> plan(const std::vector<Sequence>& sequences,
                              int64_t least,
                              Ids fed = {},
                              Ids most = {}) {
  fed.resize(sequences.size(), 0);
  most.resize(sequences.size(), 1 << 20);
  std::vector<const Sequence*> pointers;
  for (const Sequence& s : sequences) pointers.push_back(&s);
  std::vector<std::string> out;
  for (const auto& wait : shared_prefixes(pointers, fed, most, least))
    out.push_back(wait ? std::to_string(wait->row) + "@" + std::to_string(wait->at) : "-");
  return out;
}

using Plan = std::vector<std::string>;

TEST(SharedPrefixes, AreWaitedFor) {
  const Sequence a{{}, {1, 2, 3, 4, 5}}, b{{}, {1, 2, 3, 7}}, c{{}, {1, 2, 3, 4, 5}}, d{{}, {9, 9}},
      e{{}, {1, 2, 3}};
  // the shortest comes first in the order of tokens, and is all that the others need of it
  EXPECT_EQ(plan({a, b, c, d, e}, 1), (Plan{"4@3", "4@3", "0@5", "-", "-"}));
  EXPECT_EQ(plan({a, b, d}, 1), (Plan{"-", "0@3", "-"}));
  EXPECT_EQ(plan({}, 1), Plan{});
}

TEST(SharedPrefixes, ShortOnesAreNotWorthIt) {
  const Sequence a{{}, {1, 2, 3, 4}}, b{{}, {1, 2, 3, 5}};
  EXPECT_EQ(plan({a, b}, 3), (Plan{"-", "0@3"}));
  EXPECT_EQ(plan({a, b}, 4), (Plan{"-", "-"}));
  // what is gained counts, not what is alike
  EXPECT_EQ(plan({a, b}, 2, {0, 1}), (Plan{"-", "0@3"}));
  EXPECT_EQ(plan({a, b}, 2, {0, 2}), (Plan{"-", "-"}));
}

TEST(SharedPrefixes, NobodyWaitsForWhatIsPast) {
  const Sequence a{{}, {1, 2, 3, 4}}, b{{}, {1, 2, 3, 5}};
  EXPECT_EQ(plan({a, b}, 1, {3, 0}), (Plan{"-", "-"}));
  EXPECT_EQ(plan({a, b}, 1, {2, 0}), (Plan{"-", "0@3"}));
}

TEST(SharedPrefixes, NobodyTakesMoreThanItMay) {
  const Sequence a{{}, {1, 2, 3, 4}}, b{{}, {1, 2, 3, 5}}, c{{}, {1, 2, 3, 5, 6}};
  EXPECT_EQ(plan({a, b, c}, 1, {}, {4, 2, 5}), (Plan{"-", "0@2", "1@4"}));
  EXPECT_EQ(plan({a, b, c}, 1, {}, {4, 0, 3}), (Plan{"-", "-", "1@3"}));
}

TEST(SharedPrefixes, SaltsAreApart) {
  Sequence a{{}, {1, 2, 3, 4}}, b = a, c = a, d = a, e = a;
  b.salt = c.salt = 7;
  d.salt = e.salt = Sequence::kAlone;
  EXPECT_EQ(plan({a, b, c, d, e}, 1), (Plan{"-", "-", "1@4", "-", "-"}));
}

TEST(SharedPrefixes, SourcesAreAsOne) {
  const Sequence a{{5, 6, 7}, {1}}, b{{5, 6, 7}, {1}}, c{{5, 6}, {1}};
  EXPECT_EQ(plan({a, b, c}, 4), (Plan{"-", "0@1", "-"}));
  EXPECT_EQ(plan({a, b, c}, 5), (Plan{"-", "-", "-"}));
}

// whoever waits does so for a row that passes that point on its own
TEST(SharedPrefixes, ChainsEndAtARowThatRuns) {
  std::vector<Sequence> sequences;
  uint64_t random = 1;
  for (int i = 0; i < 60; ++i) {
    Sequence s;
    for (int t = 0; t < 6; ++t) {
      random = random * 6364136223846793005u + 1442695040888963407u;
      s.tokens.push_back(static_cast<int64_t>(random >> 62));
    }
    s.tokens.resize(1 + random % 6);
    sequences.push_back(s);
  }
  std::vector<const Sequence*> pointers;
  for (const Sequence& s : sequences) pointers.push_back(&s);
  const auto waits =
      shared_prefixes(pointers, Ids(sequences.size(), 0), Ids(sequences.size(), 6), 1);
  int64_t waiting = 0;
  for (size_t i = 0; i < waits.size(); ++i) {
    if (!waits[i]) continue;
    ++waiting;
    const auto [row, at] = *waits[i];
    ASSERT_NE(row, i);
    ASSERT_LE(at, static_cast<int64_t>(sequences[row].tokens.size()));
    EXPECT_TRUE(std::equal(sequences[i].tokens.begin(), sequences[i].tokens.begin() + at,
                           sequences[row].tokens.begin()));
    if (waits[row]) {
      EXPECT_LT(waits[row]->at, at);
    }
  }
  EXPECT_GT(waiting, 40);
}

}  // namespace
}  // namespace tessera::infer::shared_prefix_test
