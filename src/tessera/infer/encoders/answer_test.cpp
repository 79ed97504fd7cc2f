#include "tessera/infer/encoders/answer.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tessera::infer::answer_test {
namespace {

/// A window of 2 tokens of a question and `n` of a text with a byte each, from `first` on.
text::AnswerWindow window(size_t first, size_t n) {
  text::AnswerWindow out;
  out.ids.assign(n + 2, 1);
  out.second = out.context_begin = 2;
  for (size_t i = 0; i < n; ++i) out.context.push_back({1, first + i, first + i + 1});
  return out;
}

TEST(BestAnswer, IsTheBestSpanOfAllWindows) {
  const std::vector<text::AnswerWindow> windows = {window(0, 3), window(2, 3)};
  const std::vector<SpanLogits> logits = {{{5, 9, 1, 2, 0}, {5, 9, 0, 1, 2}},
                                          {{1, 9, 0, 3, 0}, {0, 9, 4, 0, 2}}};
  const SpanAnswer answer = best_answer(windows, logits, 10, false, false);
  EXPECT_TRUE(answer.found);
  // 3 + 2 in the second window: an end before the beginning (3 + 4) does not count, nor the
  // question
  EXPECT_EQ(answer.begin, 3u);
  EXPECT_EQ(answer.end, 5u);
  EXPECT_EQ(answer.score, 5);
  EXPECT_EQ(answer.none_score, 1);  // of the second window
  // a span of 1 token at most: 0 + 4 in the second window is the best
  EXPECT_EQ(best_answer(windows, logits, 1, false, false).score, 4);
}

TEST(BestAnswer, MayBeNone) {
  const std::vector<text::AnswerWindow> windows = {window(0, 1)};
  const std::vector<SpanLogits> logits = {{{3, 0, 1}, {2, 0, 1}}};
  const SpanAnswer none = best_answer(windows, logits, 5, true, false);
  EXPECT_FALSE(none.found);
  EXPECT_NEAR(none.probability, 1 / (1 + std::exp(2.0 - 5.0)), 1e-12);
  EXPECT_TRUE(best_answer(windows, logits, 5, false, false).found);
  // a decoder says it with the last token
  EXPECT_TRUE(best_answer(windows, logits, 5, true, true).found);
}

}  // namespace
}  // namespace tessera::infer::answer_test
