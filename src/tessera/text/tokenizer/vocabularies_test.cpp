// The table of control tokens: what stands in it, and that its names are those of other tables.
#include "tessera/text/tokenizer/vocabularies.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "tessera/text/chat/chat_formats.h"
#include "tessera/text/tokenizer_files/tokenizer_json.h"
#include "tessera/text/tokenizer_files/tokenizer_json_parts.h"

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

/// One letter, and these added tokens from id 1 on.
Tokenizer tokenizer_with(const std::vector<std::pair<std::string, bool>>& added,
                         const std::string& config = "{}") {
  spec::Json list = spec::Json::array();
  int id = 1;
  for (const auto& [content, special] : added)
    list.push_back(added_token_json(id++, content, special));
  spec::Json file = empty_tokenizer_json(std::move(list));
  file["model"] = bpe_json({{"a", 0}}, spec::Json::array());
  return tokenizer_from_json(file.dump(), "test", {config});
}

TEST(Vocabularies, TheMaskIsTheOneOfTheFilesElseTheFirstKnownSpelling) {
  EXPECT_EQ(mask_of(tokenizer_with({{"<mask>", true}, {"[MASK]", true}})), 2);
  EXPECT_EQ(mask_of(tokenizer_with({{"<mask>", false}})), 1);
  EXPECT_EQ(mask_of(tokenizer_with({{"<mask>", true}, {"<blank>", true}},
                                   R"({"mask_token": "<blank>"})")),
            2);
  EXPECT_FALSE(mask_of(tokenizer_with({{"<pad>", true}})));
}

// several coders list these tokens as ordinary added ones ("special": false)
TEST(Vocabularies, FillInTheMiddleIsOneWholeSpelling) {
  for (const bool special : {true, false}) {
    const auto ids = fim_of(tokenizer_with({{"<fim_prefix>", special},
                                            {"<|fim_middle|>", special},
                                            {"<fim_middle>", special},
                                            {"<fim_suffix>", special},
                                            {"<file_sep>", special}}));
    ASSERT_TRUE(ids);
    EXPECT_EQ(ids->prefix, 1);
    EXPECT_EQ(ids->suffix, 4);
    EXPECT_EQ(ids->middle, 3);
    EXPECT_EQ(ids->file, 5);
  }
  EXPECT_FALSE(fim_of(
      tokenizer_with({{"<fim_prefix>", true}, {"<fim_suffix>", true}, {"<|fim_middle|>", true}})));
}

}  // namespace
}  // namespace tessera::text
