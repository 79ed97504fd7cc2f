#include "tessera/infer/evaluation/ngram.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "tessera/base/error.h"
#include "tessera/base/mapped_file.h"
#include "tessera/base/rng.h"

namespace tessera::infer::ngram_test {
namespace {

TEST(Ngram, ByHandOnTwoLetters) {
  // "aab", n = 2: c_2(aa) = c_2(ab) = 1; one byte, a, stands before a and before b
  const NgramModel model("aab", 2);
  const double lowest = 1.0 / 256, d = 0.75;
  const double p1_a = (1 - d) / 2 + d * 2 / 2 * lowest;
  EXPECT_DOUBLE_EQ(model.probability("", 'a'), p1_a);
  EXPECT_DOUBLE_EQ(model.probability("a", 'a'), (1 - d) / 2 + d * 2 / 2 * p1_a);
  EXPECT_DOUBLE_EQ(model.probability("b", 'a'), p1_a);  // nothing follows b
  EXPECT_DOUBLE_EQ(model.probability("a", 'z'), d * 2 / 2 * (d * 2 / 2 * lowest));
}

// specification, additions 10: computed by two other programs
TEST(Ngram, Abracadabra) {
  const auto p = [](int order, const char* past, char next) {
    return NgramModel("abracadabra", order).probability(past, static_cast<unsigned char>(next));
  };
  EXPECT_NEAR(p(1, "ab", 'r'), 0.11496804, 5e-9);
  EXPECT_NEAR(p(1, "", 'a'), 0.38769531, 5e-9);
  EXPECT_NEAR(p(1, "", 'z'), 0.00133168, 5e-9);
  EXPECT_NEAR(p(2, "ab", 'r'), 0.63917759, 5e-9);
  EXPECT_NEAR(p(2, "ra", 'c'), 0.08376639, 5e-9);
  EXPECT_NEAR(p(2, "ra", 'b'), 0.33376639, 5e-9);
  EXPECT_NEAR(p(2, "zz", 'a'), 0.32352121, 5e-9);
  EXPECT_NEAR(p(3, "ab", 'r'), 0.72938320, 5e-9);
  EXPECT_NEAR(p(3, "ra", 'c'), 0.33376639, 5e-9);
  EXPECT_NEAR(p(3, "ra", 'b'), 0.08376639, 5e-9);
  EXPECT_NEAR(p(3, "ab", 'z'), 0.00058855, 5e-9);
}

/// The definition, with strings and sets.
double defined(const std::string& text, size_t n, const std::string& past, char next) {
  double p = 1.0 / 256;
  for (size_t k = 1; k <= n && k - 1 <= past.size(); ++k) {
    const std::string context = past.substr(past.size() - (k - 1));
    std::map<char, double> count;
    std::map<char, std::set<char>> before;
    for (size_t i = 0; i + k <= text.size(); ++i) {
      if (text.substr(i, k - 1) != context) continue;
      const char w = text[i + k - 1];
      if (k == n)
        count[w] += 1;
      else if (i > 0 && before[w].insert(text[i - 1]).second)
        count[w] += 1;
    }
    double total = 0, kinds = 0;
    for (const auto& [w, c] : count) total += c, kinds += 1;
    if (total == 0) continue;
    p = std::max(count[next] - 0.75, 0.0) / total + 0.75 * kinds / total * p;
  }
  return p;
}

TEST(Ngram, AgainstTheDefinitionWithStringsAndSets) {
  const RandomKey key(3);
  std::string text;
  const std::string letters = {'a', 'b', 'c', '\0', '\xff'};
  for (size_t i = 0; i < 300; ++i) text += letters[key.bits(i) % letters.size()];
  for (const int order : {1, 2, 3, 5, 8}) {
    const NgramModel model(text, order);
    for (size_t i = 0; i < 40; ++i) {
      const size_t at = key.fold("past").bits(i) % text.size();
      const std::string past = text.substr(0, at) + (i % 5 == 0 ? "x" : "");
      const char next = letters[i % letters.size()];
      EXPECT_NEAR(model.probability(past, static_cast<unsigned char>(next)),
                  defined(text, static_cast<size_t>(order), past, next), 1e-15)
          << order << " " << i;
    }
  }
}

TEST(Ngram, ProbabilitiesSumToOne) {
  const NgramModel model("the cat sat on the mat and the dog sat on the log", 4);
  for (const char* past : {"", "t", "the", "he ", "zzz"}) {
    double sum = 0;
    for (int w = 0; w < 256; ++w) sum += model.probability(past, static_cast<unsigned char>(w));
    EXPECT_NEAR(sum, 1, 1e-12) << past;
  }
}

// specification, additions 10
TEST(Ngram, Shakespeare) {
  const std::string text =
      read_text_file(std::string(TESSERA_SOURCE_DIR) + "/examples/data/shakespeare.txt");
  ASSERT_EQ(text.size(), 1115394u);
  const size_t border = 1003854;
  const double published[] = {3.34736369, 2.48402494, 2.04152421, 1.72248451,
                              1.56646124, 1.53868953, 1.54711402};
  for (const int order : {1, 3, 4, 5, 7}) {
    const NgramModel model(std::string_view(text).substr(0, border), order);
    EXPECT_NEAR(model.nll_sum(text, border) / static_cast<double>(text.size() - border),
                published[order - 1], 5e-9)
        << order;
  }
  const std::string_view first = std::string_view(text).substr(0, border + 2000);
  EXPECT_NEAR(NgramModel(first.substr(0, border), 5).nll_sum(first, border) / 2000, 1.39894549,
              5e-9);
}

TEST(Ngram, RefusesBadOrdersAndShortTexts) {
  EXPECT_THROW(NgramModel("abc", 0), Error);
  EXPECT_THROW(NgramModel("abcdefghijk", 9), Error);
  EXPECT_THROW(NgramModel("abc", 4), Error);
  EXPECT_NO_THROW(NgramModel("abc", 3));
}

}  // namespace
}  // namespace tessera::infer::ngram_test
