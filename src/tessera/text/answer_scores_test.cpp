#include "tessera/text/answer_scores.h"

#include <gtest/gtest.h>

#include <vector>

namespace tessera::text::answer_scores_test {
namespace {

using Texts = std::vector<std::string>;

TEST(AnswerScores, AnswersAsSquadComparesThem) {
  struct Case {
    const char *truth, *said;
    bool same;
    double f1;
  };
  for (const Case& c : {Case{"The Eiffel Tower!", "eiffel tower", true, 1},
                        {"a cat, the dog and an owl", "cat dog", false, 2.0 / 3},
                        {"Straße 7", "straße  7.", true, 1},
                        {"one two two", "two two two", false, 2.0 / 3},
                        {"", "", true, 1},
                        {"the", "a", true, 1},
                        {"x", "", false, 0},
                        {"U.S.A.", "usa", true, 1},
                        {"well-known fact", "well known fact", false, 0.4},
                        {"“the” ÄPFEL", "“” äpfel", false, 0.4}}) {
    EXPECT_EQ(exact_match(c.truth, c.said), c.same) << c.truth;
    EXPECT_NEAR(answer_f1(c.truth, c.said), c.f1, 1e-7) << c.truth;
  }
  EXPECT_EQ(normalized_answer("“the” ÄPFEL"), "“ ” äpfel");
  EXPECT_EQ(best_answer_f1(Texts{"red", "dark red"}, "dark red"), 1);
  EXPECT_EQ(best_exact_match(Texts{"red", "blue"}, "Blue."), 1);
  EXPECT_EQ(best_exact_match(Texts{}, ""), 1);
  EXPECT_EQ(best_answer_f1(Texts{}, "red"), 0);
}

// Lin 2004, sec. 3.1: the sentences of its example, and F with beta = 1 (recall 3/4, precision 3/4;
// 2/4, 2/4); the others by the definition
TEST(AnswerScores, RougeLIsTheLongestCommonSubsequence) {
  EXPECT_DOUBLE_EQ(rouge_l("police killed the gunman", "police kill the gunman"), 0.75);
  EXPECT_DOUBLE_EQ(rouge_l("police killed the gunman", "the gunman kill police"), 0.5);
  EXPECT_DOUBLE_EQ(rouge_l("police killed the gunman", "the gunman police killed"), 0.5);
  EXPECT_DOUBLE_EQ(rouge_l("The cat, 2 DOGS.", "the-cat ate 2 dogs"), 2 * 4 / 9.0);
  EXPECT_DOUBLE_EQ(rouge_l("café", "caf"), 1);
  EXPECT_EQ(rouge_l("", ""), 0);
  EXPECT_EQ(rouge_l("x", "y"), 0);
}

}  // namespace
}  // namespace tessera::text::answer_scores_test
