#include "tessera/retrieve/passages.h"

#include <gtest/gtest.h>

#include "tessera/base/testing.h"
#include "tessera/text/tokenizer/byte_tokenizer.h"

namespace tessera::retrieve::passages_test {
namespace {

using test::expect_error;

const text::Tokenizer& bytes() {
  static const text::Tokenizer tokenizer = text::byte_tokenizer({});
  return tokenizer;
}

std::vector<std::string> texts(std::string_view text, const PassageOptions& options) {
  std::vector<std::string> out;
  for (const Span& span : passages_of(text, bytes(), options))
    out.emplace_back(text.substr(span.begin, span.end - span.begin));
  return out;
}

TEST(Passages, LinesGatherUpToTheLimitAndTheLastOnesAreRepeated) {
  EXPECT_EQ(texts("aaa\nbbb\nccc\nddd\n", {.tokens = 8, .overlap = 4}),
            (std::vector<std::string>{"aaa\nbbb\n", "bbb\nccc\n", "ccc\nddd\n"}));
  EXPECT_EQ(texts("aaa\nbbb\nccc", {.tokens = 8, .overlap = 0}),
            (std::vector<std::string>{"aaa\nbbb\n", "ccc"}));
  // a repeated line would leave no room for the next one
  EXPECT_EQ(texts("aaa\nbbb\nccccccc\n", {.tokens = 8, .overlap = 4}),
            (std::vector<std::string>{"aaa\nbbb\n", "ccccccc\n"}));
}

TEST(Passages, EndAtBlankLinesAndHeadingsFromHalfTheLimitOn) {
  EXPECT_EQ(texts("one\ntwo\n\n\nthree\n# four\nfive\n", {.tokens = 12, .overlap = 4}),
            (std::vector<std::string>{"one\ntwo\n", "three\n", "# four\nfive\n"}));
  // less than half: it goes on over the blank line
  EXPECT_EQ(texts("a\n\nb\n", {.tokens = 12, .overlap = 0}),
            (std::vector<std::string>{"a\n\nb\n"}));
  EXPECT_TRUE(texts("", {}).empty());
  EXPECT_TRUE(texts("\n \t\r\n\n", {}).empty());
}

TEST(Passages, LongLinesAreCutBehindSentencesWordsAndCharacters) {
  EXPECT_EQ(texts("One two. Three four.", {.tokens = 12, .overlap = 0}),
            (std::vector<std::string>{"One two. ", "Three four."}));
  EXPECT_EQ(texts("alpha beta gamma", {.tokens = 12, .overlap = 0}),
            (std::vector<std::string>{"alpha ", "beta gamma"}));
  // characters of two bytes stay whole
  const std::string letters = "\xC3\xA4\xC3\xB6\xC3\xBC\xC3\x9F\xC3\xA4\xC3\xB6";
  std::string back;
  for (const std::string& part : texts(letters, {.tokens = 5, .overlap = 0})) {
    EXPECT_LE(part.size(), 5u);
    EXPECT_EQ(part.size() % 2, 0u);
    back += part;
  }
  EXPECT_EQ(back, letters);
}

TEST(Passages, CoverAllButBlankLinesWithinTheLimitWhateverTheText) {
  std::string text;
  uint32_t state = 7;
  for (int i = 0; i < 4000; ++i) {
    state = state * 1664525 + 1013904223;
    text += "ab .\n#c d\n"[(state >> 24) % 10];
  }
  for (const int64_t tokens : {1, 2, 7, 50, 400})
    for (const int64_t overlap : {int64_t{0}, tokens / 3}) {
      const std::vector<Span> all = passages_of(text, bytes(), {tokens, overlap});
      std::vector<bool> covered(text.size());
      size_t begin = 0;
      for (const Span& span : all) {
        ASSERT_LT(span.begin, span.end);
        ASSERT_TRUE(span.begin > begin || &span == &all.front());
        begin = span.begin;
        EXPECT_EQ(span.first_line,
                  1 + std::count(text.begin(),
                                 text.begin() + static_cast<std::ptrdiff_t>(span.begin), '\n'));
        EXPECT_EQ(span.last_line,
                  1 + std::count(text.begin(),
                                 text.begin() + static_cast<std::ptrdiff_t>(span.end) - 1, '\n'));
        // blank lines within it cost nothing
        EXPECT_LE(std::count_if(text.begin() + static_cast<std::ptrdiff_t>(span.begin),
                                text.begin() + static_cast<std::ptrdiff_t>(span.end),
                                [](char c) { return c != '\n' && c != ' '; }),
                  tokens);
        for (size_t i = span.begin; i < span.end; ++i) covered[i] = true;
      }
      for (size_t i = 0; i < text.size(); ++i)
        EXPECT_TRUE(covered[i] || text[i] == '\n' || text[i] == ' ') << i;
    }
}

TEST(Passages, OptionsMustMakeSense) {
  expect_error(ErrorKind::usage, "expected at least 1", [] { texts("a", {.tokens = 0}); });
  expect_error(ErrorKind::usage, "fewer repeated", [] { texts("a", {.tokens = 5, .overlap = 5}); });
}

}  // namespace
}  // namespace tessera::retrieve::passages_test
