// The numbers are those of sacrebleu 2.6.0.
#include "tessera/text/corpus_scores.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace tessera::text::corpus_scores_test {
namespace {

TEST(CorpusScores, WordsAreThoseOf13a) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"Hello, world! It's 3.14, or 1,000-2,000 (about) -- e.g. \"this\".",
       "Hello , world ! It's 3.14 , or 1,000 - 2,000 ( about ) -- e . g . \" this \" ."},
      {"&quot;A &amp; B&quot; &lt;x&gt; a/b c_d 5- 5-6 .5 ,..",
       "\" A & B \" < x > a / b c _ d 5 - 5 - 6 . 5 , . ."},
      {"Größe: 10.000,5 €, naïve„quoted“… end.", "Größe : 10.000,5 € , naïve„quoted“… end ."},
      {"a\u00a0b\u2003c\td\x1c"
       "e <skipped>x-\ny\nz",
       "a b c d e xy z"},
      {".,", ". ,"},
      {"", ""},
      {"7.", "7 ."},
      {"...,,3,.4.x", ". . . , , 3 , . 4 . x"}};
  for (const auto& [line, words] : cases) EXPECT_EQ(words_13a(line), words);
}

// len(re.split(r"\s+", text)) of Python 3.11
TEST(CorpusScores, WordsOfWordPerplexityAreThoseOfPythonsSplit) {
  for (const auto& [text, words] : {std::pair{"", 1},
                                    {"one", 1},
                                    {" one  two\n", 4},
                                    {"a\u00a0b", 2},
                                    {"a\x1c\tb c", 3},
                                    {"  ", 2}})
    EXPECT_EQ(count_words(text), words) << text;
}

TEST(CorpusScores, AreThoseOfWholeFiles) {
  struct Case {
    std::vector<std::pair<std::string, std::string>> texts;  // said, expected
    double bleu, chrf, ratio;
  };
  const std::vector<Case> cases = {
      {{{"Ein Mann fährt ein rotes Fahrrad.", "Ein Mann fährt ein rotes Fahrrad durch die Stadt."},
        {"Zwei Hunde spielen im Schnee.", "Zwei Hunde spielen im Schnee."},
        {"Das ist, na ja, 3.5 Meter lang!", "Es ist etwa 3.5 Meter lang."}},
       56.32124994907414,
       74.25347616447459,
       1},
      {{{"the cat", "a dog ran"}, {"x", "y z"}}, 0, 1.937984496124031, .6},
      // the same words again count once; what has none of four is smoothed
      {{{"the the the the the", "the cat is on the mat"}},
       10.400597689005304,
       15.35881105576688,
       5. / 6},
      {{{"", "something"}, {"a b c", "a b c"}}, 0, 22.86282306163022, .75},
      {{{"a much longer answer than was expected here", "a much shorter one"}},
       11.044795567078939,
       25.556459690947104,
       2},
      {{{"ab", "abcdefg"}, {"Größer", "Große"}}, 0, 17.24137931034483, 1},
      {{{"", ""}}, 0, 0, 0},
      {{}, 0, 0, 0}};
  for (const Case& c : cases) {
    CorpusScores scores, sum;
    for (const auto& [said, expected] : c.texts) {
      scores.add(said, expected);
      CorpusScores one;
      one.add(said, expected);
      sum += one;
    }
    EXPECT_EQ(scores.texts(), std::ssize(c.texts));
    EXPECT_EQ(sum.texts(), scores.texts());
    EXPECT_EQ(sum.bleu(), scores.bleu());
    EXPECT_EQ(sum.chrf(), scores.chrf());
    EXPECT_EQ(sum.length_ratio(), scores.length_ratio());
    EXPECT_NEAR(scores.bleu(), c.bleu, 1e-9);
    EXPECT_NEAR(scores.chrf(), c.chrf, 1e-9);
    EXPECT_NEAR(scores.length_ratio(), c.ratio, 1e-12);
  }
}

}  // namespace
}  // namespace tessera::text::corpus_scores_test
