#include "tessera/infer/speculation/draft_tree.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tessera/infer/speculation/prompt_lookup.h"

namespace tessera::infer::draft_tree_test {
namespace {

using Ids = std::vector<int64_t>;

//  5 - 6 - 7
//    \ 8
//  9 - 6
const DraftTree kTree{{5, 6, 7, 8, 9, 6}, {0, 1, 2, 1, 0, 1}};

TEST(DraftTree, ChildrenAreThoseOfTheirOwnParent) {
  EXPECT_EQ(kTree.child(-1, 5), 0);
  EXPECT_EQ(kTree.child(-1, 9), 4);
  EXPECT_EQ(kTree.child(-1, 6), -1);
  EXPECT_EQ(kTree.child(0, 6), 1);
  EXPECT_EQ(kTree.child(0, 8), 3);
  EXPECT_EQ(kTree.child(0, 7), -1);
  EXPECT_EQ(kTree.child(3, 6), -1);
  EXPECT_EQ(kTree.child(4, 6), 5);
  EXPECT_EQ(kTree.child(5, 6), -1);
  const DraftTree chain{{4, 4, 2}};
  EXPECT_EQ(chain.child(-1, 4), 0);
  EXPECT_EQ(chain.child(0, 4), 1);
  EXPECT_EQ(chain.child(0, 2), -1);
  EXPECT_EQ(chain.child(2, 4), -1);
  EXPECT_EQ(DraftTree().child(-1, 4), -1);
}

TEST(DraftTree, JoinsWhatWaysBeginWith) {
  const DraftTree got = joined({{5, 6, 7}, {9, 6}, {5, 8}, {5, 6}});
  EXPECT_EQ(got.ids, kTree.ids);
  EXPECT_EQ(got.depths, kTree.depths);
  EXPECT_TRUE(joined({{1, 2, 3}, {1, 2}}).chain());
  EXPECT_TRUE(joined({}).empty());
}

// ln p by hand; the first of each place leads, whatever it is
TEST(DraftTree, CandidatesAreTheMostLikelyBehindTheFirst) {
  const std::vector<float> logits = {0, std::log(4.0F), std::log(3.0F), std::log(2.0F)};
  const auto got = draft_tokens_at(logits, 3, 3);
  ASSERT_EQ(got.size(), 3U);
  EXPECT_EQ(got[0].id, 3);
  EXPECT_NEAR(got[0].log_p, std::log(0.4), 1e-6);  // as likely as the best
  EXPECT_EQ(got[1].id, 1);
  EXPECT_EQ(got[2].id, 2);
  EXPECT_NEAR(got[2].log_p, std::log(0.3), 1e-6);
}

// ways of largest probability: 1 (.6), 1 3 (.54), 2 (.3), 2 3 (.27), 1 4 (.06)
TEST(DraftTree, GrowsWhereItIsMostLikely) {
  const auto at = [](int64_t id, double p) { return DraftToken{id, std::log(p)}; };
  const std::vector<std::vector<DraftToken>> places = {{at(1, .6), at(2, .3)},
                                                       {at(3, .9), at(4, .1)}};
  const DraftTree any = grow(places, 4, true);
  EXPECT_EQ(any.ids, (Ids{1, 3, 2, 3}));
  EXPECT_EQ(any.depths, (Ids{0, 1, 0, 1}));
  EXPECT_EQ(grow(places, 5, true).ids, (Ids{1, 3, 4, 2, 3}));
  EXPECT_EQ(grow(places, 99, true).size(), 6);
  // only what follows the first is known of the second place
  EXPECT_EQ(grow(places, 99, false).ids, (Ids{1, 3, 4, 2}));
  EXPECT_TRUE(grow(places, 2, true).chain());
  EXPECT_TRUE(grow({}, 4, true).empty());
  EXPECT_TRUE(grow(places, 0, true).empty());
}

TEST(LookUp, OfSeveralPlacesIsATree) {
  // "1 2" stood twice: 4 followed later, 3 before
  const Ids text = {1, 2, 3, 7, 1, 2, 4, 8, 1, 2};
  const DraftTree got = prompt_lookup_tree(text, 3, 2, 2);
  EXPECT_EQ(got.ids, (Ids{4, 8, 3, 7}));
  EXPECT_EQ(got.depths, (Ids{0, 1, 0, 1}));
  EXPECT_EQ(prompt_lookup_tree(text, 3, 2, 1).ids, prompt_lookup(text, 3, 2));
  EXPECT_TRUE(prompt_lookup_tree(Ids{1, 2, 3}, 3, 2, 4).empty());
}

}  // namespace
}  // namespace tessera::infer::draft_tree_test
