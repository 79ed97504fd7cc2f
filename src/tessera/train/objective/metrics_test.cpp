// Against scikit-learn, scipy, seqeval and torchmetrics.
#include "tessera/train/objective/metrics.h"

#include <gtest/gtest.h>

namespace tessera::train::metrics_test {
namespace {

using Classes = std::vector<int64_t>;
using Labels = std::vector<std::string>;

TEST(Metrics, OfTwoClasses) {
  const Classes y = {1, 0, 1, 1, 0, 1, 0, 0, 1, 0}, p = {1, 1, 1, 0, 0, 1, 0, 0, 1, 1};
  EXPECT_DOUBLE_EQ(accuracy(y, p), 0.7);
  EXPECT_NEAR(f1_of_class(y, p, 1), 0.72727273, 5e-9);
  EXPECT_NEAR(matthews(y, p), 0.40824829, 5e-9);
}

TEST(Metrics, OfThreeClasses) {
  const Classes y = {0, 1, 2, 2, 1, 0, 2, 1}, p = {0, 2, 2, 1, 1, 0, 2, 0};
  EXPECT_NEAR(macro_f1(y, p), 0.62222222, 5e-9);
  EXPECT_NEAR(matthews(y, p), 0.45238095, 5e-9);
}

TEST(Metrics, OfSeveralClassesAText) {
  const std::vector<Classes> y = {{0, 2}, {2}, {0, 1}, {1}}, p = {{0}, {1, 2}, {0, 1}, {}};
  EXPECT_NEAR(micro_f1(y, p), 0.72727272727, 1e-10);
}

TEST(Metrics, UndefinedOnesAreZero) {
  const Classes none, ones = {1, 1, 1}, zeros = {0, 0, 0};
  EXPECT_EQ(accuracy(none, none), 0);
  EXPECT_EQ(f1_of_class(zeros, zeros, 1), 0);
  EXPECT_EQ(macro_f1(none, none), 0);
  EXPECT_EQ(matthews(ones, ones), 0);
  EXPECT_EQ(matthews(ones, zeros), 0);
  const std::vector<double> flat = {2, 2, 2}, rising = {1, 2, 3};
  EXPECT_EQ(pearson(flat, rising), 0);
  EXPECT_EQ(spearman(rising, flat), 0);
}

TEST(Metrics, Correlations) {
  const std::vector<double> a = {1, 2, 2, 4, 5, 3.5}, b = {.8, 2.5, 1.9, 3, 5.2, 3};
  EXPECT_NEAR(pearson(a, b), 0.93690732, 5e-9);
  EXPECT_NEAR(spearman(a, b), 0.97058824, 5e-9);
  EXPECT_EQ(average_ranks(a), (std::vector<double>{1, 2.5, 2.5, 5, 6, 4}));
}

// tools/golden/label_benchmarks.py
TEST(Metrics, OfQuestionsWithSeveralAnswers) {
  const Classes truth = {1, 0, 1, 1, 0, 0, 0, 1}, said = {1, 0, 0, 1, 0, 1, 0, 1};
  const std::vector<double> margins = {.5, -.2, -1, .1, -3, 2, -.1, 1};
  const Groups groups = {{0, 1}, {2, 3, 4}, {5, 6}, {7}};
  EXPECT_DOUBLE_EQ(f1_of_class(truth, said, 1), 0.75);
  EXPECT_EQ(right_groups(groups, truth, said), 2);
  EXPECT_EQ(right_choices(groups, truth, margins), 3);
  const Labels entities = {"The Red House", "Bern", "red house of Bern", "Ada Lovelace", "Lovelace",
                           "the Alps",      "Rome"};
  const CandidateScores scores =
      candidate_scores(Groups{{0, 1, 2}, {3, 4}, {5, 6}}, Classes{1, 0, 1, 0, 1, 1, 0},
                       std::vector<double>{1, 2, 0, 3, 1, -1, -2}, entities);
  EXPECT_EQ(scores.exact_match, (std::vector<double>{0, 0, 1}));
  EXPECT_NEAR(scores.f1[0] + scores.f1[1] + scores.f1[2], 3 * 0.6888888888888888, 1e-12);
}

TEST(Metrics, Entities) {
  EXPECT_EQ(entities(Labels{"O", "B-ORG", "B-ORG", "I-ORG", "I-PER"}),
            (std::vector<Entity>{{1, 2, "ORG"}, {2, 4, "ORG"}, {4, 5, "PER"}}));
  EXPECT_EQ(entities(Labels{"I-LOC", "I-LOC", "O", "I-LOC"}),
            (std::vector<Entity>{{0, 2, "LOC"}, {3, 4, "LOC"}}));
  const std::vector<Labels> truth = {{"B-PER", "I-PER", "O", "B-LOC"},
                                     {"O", "B-ORG", "B-ORG", "I-ORG", "I-PER"},
                                     {"I-LOC", "I-LOC", "O", "O", "B-PER"}};
  const std::vector<Labels> said = {{"B-PER", "I-PER", "O", "B-PER"},
                                    {"O", "B-ORG", "I-ORG", "I-ORG", "I-PER"},
                                    {"B-LOC", "I-LOC", "O", "I-PER", "I-PER"}};
  Overlap sum;
  for (size_t i = 0; i < truth.size(); ++i) sum += entity_overlap(truth[i], said[i]);
  EXPECT_DOUBLE_EQ(sum.precision(), 0.5);
  EXPECT_NEAR(sum.recall(), 0.42857142857, 1e-10);
  EXPECT_NEAR(sum.f1(), 0.46153846153, 1e-10);
  EXPECT_TRUE(is_iob2(truth[0]));
  EXPECT_FALSE(is_iob2(Labels{"O", "O"}));
  EXPECT_FALSE(is_iob2(Labels{"O", "NOUN", "B-PER"}));
}

}  // namespace
}  // namespace tessera::train::metrics_test
