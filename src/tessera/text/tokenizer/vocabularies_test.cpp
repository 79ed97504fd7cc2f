// The table of control tokens: what stands in it, and that its names are those of other tables.
#include "tessera/text/tokenizer/vocabularies.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "tessera/text/chat/chat_formats.h"

namespace tessera::text {
namespace {

TEST(Vocabularies, AreReadWhole) {
  const KnownTokens& tokens = known_tokens();
  ASSERT_EQ(tokens.fill_in_middle.size(), 7u);
  EXPECT_EQ(tokens.fill_in_middle.front().suffix, "<|fim_suffix|>");
  EXPECT_EQ(tokens.fill_in_middle[3].middle, "<｜fim▁end｜>");
  EXPECT_EQ(tokens.file_separators.back(), "<file_sep>");
  EXPECT_EQ(tokens.masks, (std::vector<std::string>{"[MASK]", "<mask>"}));
  EXPECT_EQ(tokens.sentinel, "<extra_id_{}>");
  ASSERT_EQ(tokens.reasoning.size(), 4u);
  EXPECT_EQ(tokens.reasoning[1].close, "[/THINK]");
  ASSERT_EQ(tokens.languages.size(), 6u);
  EXPECT_EQ(tokens.languages[2].open + "fra" + tokens.languages[2].close, ">>fra<<");
}

TEST(Vocabularies, ChatFormatsAreThoseThatHaveATemplate) {
  const std::vector<std::string> names = chat_format_names();
  ASSERT_EQ(known_tokens().chat_formats.size(), 3u);
  for (const auto& [token, format] : known_tokens().chat_formats) {
    EXPECT_TRUE(std::count(names.begin(), names.end(), format)) << format;
    EXPECT_NE(chat_format_source(format)->find(token), std::string::npos) << token;
  }
}

}  // namespace
}  // namespace tessera::text
