#include "tessera/retrieve/citations.h"

#include <gtest/gtest.h>

#include "tessera/text/tokenizer/byte_tokenizer.h"

namespace tessera::retrieve::citations_test {
namespace {

const text::Tokenizer& bytes() {
  static const text::Tokenizer tokenizer = text::byte_tokenizer({});
  return tokenizer;
}

TEST(Cited, PassagesStandBeforeTheQuestionWithTheirSources) {
  const PromptWithPassages asked =
      augment_prompt("Who?", {{"a.md:1-2", "Ann\nBob\n"}, {"b.md:7", "Cem"}}, 1000, bytes());
  EXPECT_EQ(asked.passages, 2u);
  EXPECT_FALSE(asked.cut);
  EXPECT_TRUE(
      asked.prompt.ends_with("\n[1] a.md:1-2\nAnn\nBob\n\n[2] b.md:7\nCem\n\nQuestion: Who?"))
      << asked.prompt;
}

TEST(Cited, ThereAreAsManyAsTheTokensHaveRoomFor) {
  const std::vector<Source> found = {{"a", "one\ntwo\n"}, {"b", "three\n"}};
  const std::string all = augment_prompt("?", found, 1000, bytes()).prompt;
  const auto whole = static_cast<int64_t>(all.size() - std::string("\nQuestion: ?").size());
  EXPECT_EQ(augment_prompt("?", found, whole, bytes()).prompt, all);
  for (int64_t tokens = 0; tokens <= whole; ++tokens) {
    const PromptWithPassages asked = augment_prompt("?", found, tokens, bytes());
    if (asked.passages == 0)
      EXPECT_EQ(asked.prompt, "?");
    else
      EXPECT_LE(static_cast<int64_t>(asked.prompt.size()), tokens + 12) << tokens;
  }
  // one token less: the second has no whole line left, two lines less: the first loses its last
  EXPECT_EQ(augment_prompt("?", found, whole - 1, bytes()).passages, 1u);
  const auto first = whole - static_cast<int64_t>(std::string("\n[2] b\nthree\n").size());
  const PromptWithPassages cut = augment_prompt("?", found, first - 1, bytes());
  EXPECT_TRUE(cut.cut);
  EXPECT_TRUE(cut.prompt.ends_with("[1] a\none\n\nQuestion: ?")) << cut.prompt;
}

TEST(Cited, NumbersInBracketsThatAreThere) {
  EXPECT_EQ(cited("So it is [2], and [1, 3][2].", 3), (std::vector<size_t>{1, 2, 3}));
  EXPECT_EQ(cited("[0] [4] [x] [1a] [] [99999999999999999999] [2", 3), (std::vector<size_t>{}));
  EXPECT_EQ(cited("a[1]", 0), (std::vector<size_t>{}));
}

}  // namespace
}  // namespace tessera::retrieve::citations_test
