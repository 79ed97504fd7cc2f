#include "tessera/infer/speculation/prompt_lookup.h"

#include <gtest/gtest.h>

namespace tessera::infer::lookup_test {
namespace {

using Tokens = std::vector<int64_t>;

TEST(LookUp, TheLongestRunWinsThenTheLatestPlace) {
  //              0  1  2  3  4  5  6  7  8  9
  const Tokens t{1, 2, 3, 9, 2, 3, 8, 3, 2, 3};
  EXPECT_EQ(prompt_lookup(t, 1, 2), (Tokens{2, 3}));        // the latest 3, at 7
  EXPECT_EQ(prompt_lookup(t, 2, 2), (Tokens{8, 3}));        // the latest 2 3, at 4
  EXPECT_EQ(prompt_lookup(t, 5, 9), (Tokens{8, 3, 2, 3}));  // to the end at most
}

TEST(LookUp, RepetitionGoesOn) {
  EXPECT_EQ(prompt_lookup(Tokens{4, 5, 4, 5, 4, 5}, 3, 2), (Tokens{4, 5}));
  EXPECT_EQ(prompt_lookup(Tokens{7, 7, 7}, 4, 3), (Tokens{7}));
}

TEST(LookUp, NothingToGoOn) {
  EXPECT_EQ(prompt_lookup(Tokens{}, 3, 4), Tokens{});
  EXPECT_EQ(prompt_lookup(Tokens{1}, 3, 4), Tokens{});
  EXPECT_EQ(prompt_lookup(Tokens{1, 2, 3}, 3, 4), Tokens{});
  EXPECT_EQ(prompt_lookup(Tokens{1, 1}, 3, 0), Tokens{});
}

TEST(LookUp, WhatIsExpectedGoesBeforeAnEquallyLongRun) {
  const Tokens text{1, 2, 7, 1, 2}, expected{5, 2, 8, 9};
  EXPECT_EQ(prompt_lookup(text, 1, 2, expected), (Tokens{8, 9}));
  EXPECT_EQ(prompt_lookup(text, 2, 2, expected), (Tokens{7, 1}));  // two tokens, here one
  EXPECT_EQ(prompt_lookup(Tokens{4, 5}, 3, 9, expected), (Tokens{2, 8, 9}));
  EXPECT_EQ(prompt_lookup(Tokens{4, 9}, 3, 9, expected), Tokens{});  // nothing follows
  const DraftTree tree = prompt_lookup_tree(text, 1, 2, 2, expected);
  EXPECT_EQ(tree.ids, (Tokens{8, 9, 7, 1}));
  EXPECT_EQ(tree.depths, (Tokens{0, 1, 0, 1}));
}

}  // namespace
}  // namespace tessera::infer::lookup_test
