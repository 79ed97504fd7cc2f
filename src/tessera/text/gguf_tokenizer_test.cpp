#include "tessera/text/gguf_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/testing.h"
#include "tessera/spec/json.h"
#include "tessera/text/byte_level.h"
#include "tessera/text/split.h"

namespace tessera::text {
extern const char* const kGgufTokenizersJson;
}

namespace tessera::text::gguf_tokenizer_test {

namespace {

using Ids = std::vector<int32_t>;

std::string error_of(const GgufTokenizerData& data) {
  return test::error_of([&] { tokenizer_from_gguf(data, "g"); });
}

// 256 byte characters, "he", "Ġhe", then a control and a user-defined token.
GgufTokenizerData byte_level() {
  GgufTokenizerData data;
  data.model = "gpt2";
  data.pre = "smollm";
  for (const std::string& character : byte_characters()) data.tokens.push_back(character);
  for (const char* token : {"he", "\xC4\xA0he", "<|end|>", "<tool>"})
    data.tokens.emplace_back(token);
  data.token_types.assign(256 + 2, 1);
  data.token_types.insert(data.token_types.end(), {3, 4});
  data.merges = {"h e", "\xC4\xA0 he"};
  data.bos_id = 258;
  data.eos_id = 258;
  return data;
}

TEST(GgufTokenizer, ByteLevel) {
  const Tokenizer t = tokenizer_from_gguf(byte_level(), "g");
  EXPECT_EQ(t.encode("he he"), (Ids{256, 257}));
  EXPECT_EQ(t.encode("12").size(), 2u);
  EXPECT_EQ(t.encode("<tool>"), Ids{259});
  EXPECT_EQ(t.encode("<|end|>", {true, true}), Ids{258});
  EXPECT_EQ(t.encode("<|end|>").size(), 7u);
  EXPECT_TRUE(t.is_special(258));
  EXPECT_FALSE(t.is_special(259));
  EXPECT_EQ(t.id("<|end|>"), 258);
  EXPECT_EQ(t.decode(Ids{256, 257, 258}), "he he");
}

TEST(GgufTokenizer, AddsWhatTheFileOrTheKindAsksFor) {
  GgufTokenizerData data = byte_level();
  data.add_bos = true;
  data.add_eos = true;
  EXPECT_EQ(tokenizer_from_gguf(data, "g").encode("he"), (Ids{258, 256, 258}));
  data = byte_level();
  data.pre = "llama-bpe";
  EXPECT_EQ(tokenizer_from_gguf(data, "g").encode("he"), (Ids{258, 256}));
  data.bos_id.reset();
  EXPECT_EQ(tokenizer_from_gguf(data, "g").encode("he"), Ids{256});
  data.add_bos = true;
  EXPECT_EQ(error_of(data),
            "[g] tokenizer.ggml.add_bos_token is true, but the file names no such token");
}

GgufTokenizerData scores() {
  GgufTokenizerData data;
  data.model = "llama";
  data.tokens = {"<unk>", "<s>", "</s>"};
  data.token_types = {2, 3, 3};
  data.scores = {0, 0, 0};
  const auto add = [&](const std::string& token, float score, int32_t type) {
    data.tokens.push_back(token);
    data.scores.push_back(score);
    data.token_types.push_back(type);
  };
  for (int byte = 0; byte < 256; ++byte) add(fmt::format("<0x{:02X}>", byte), 0, 6);
  for (const char* token : {"▁", "a", "b", "<", "s", ">", "<s", "s>"}) add(token, -9, 1);
  add("ab", -1, 1);
  add("▁a", -2, 1);
  add("▁ab", -3, 1);
  data.bos_id = 1;
  data.eos_id = 2;
  data.unk_id = 0;
  return data;
}

TEST(GgufTokenizer, Scores) {
  const Tokenizer t = tokenizer_from_gguf(scores(), "g");
  EXPECT_EQ(t.encode("ab ab"), (Ids{1, 269, 269}));
  EXPECT_EQ(t.encode("é", {false, false}), (Ids{259, 3 + 0xC3, 3 + 0xA9}));
  EXPECT_EQ(t.decode(t.encode("ab aéb ")), "ab aéb ");
  // "<" + "s>" spells the begin-of-text token, but text never becomes one
  for (const int32_t id : t.encode("<s>", {false, false})) EXPECT_NE(id, 1);
  EXPECT_EQ(t.encode("<s>ab", {false, true}), (Ids{1, 269}));
  GgufTokenizerData bare = scores();
  bare.add_space_prefix = false;
  bare.add_bos = false;
  EXPECT_EQ(tokenizer_from_gguf(bare, "g").encode("ab ab"), (Ids{267, 269}));
}

TEST(GgufTokenizer, RefusesBrokenMetadata) {
  GgufTokenizerData data = byte_level();
  data.pre = "nope";
  EXPECT_TRUE(error_of(data).starts_with(
      "[g] tokenizer.ggml.pre = \"nope\" is not known; expected one of"));
  data = byte_level();
  data.model = "plamo2";
  EXPECT_TRUE(error_of(data).starts_with(
      "[g] tokenizer.ggml.model = \"plamo2\" is not known; expected one of"));
  data = byte_level();
  data.token_types.pop_back();
  EXPECT_EQ(error_of(data), "[g] 259 token types for 260 tokens");
  data = byte_level();
  data.eos_id = 260;
  EXPECT_EQ(error_of(data), "[g] tokenizer.ggml.eos_token_id = 260; expected 0 to 259");
  data = byte_level();
  data.merges.emplace_back("x");
  EXPECT_EQ(error_of(data), "[g] merge 2 is \"x\"; expected \"left right\"");
  data = byte_level();
  data.tokens[5] = "\xFF";
  EXPECT_EQ(error_of(data), "[g] token 5 is not valid UTF-8");
  data = byte_level();
  data.tokens.clear();
  EXPECT_EQ(error_of(data), "[g] tokenizer.ggml.tokens is missing or empty");
  data = scores();
  data.scores.pop_back();
  EXPECT_EQ(error_of(data), "[g] 269 scores for 270 tokens");
  data = scores();
  data.unk_id.reset();
  data.tokens[3 + 7] = "x";
  EXPECT_EQ(error_of(data),
            "[g] no unknown token, and no byte token <0x07>; a text could not be encoded");
}

TEST(GgufTokenizer, PatternsCutOneAfterAnother) {
  // the pieces that the PyPI package tokenizers makes of the same patterns
  const spec::Json table = spec::parse_json(kGgufTokenizersJson, "table");
  for (const spec::Json& entry : table.at("pre")) {
    if (entry.at("names")[0] != "deepseek-llm") continue;
    std::vector<std::string> pieces = {"Hello Äpfel 12345\n\n你好，世界! x+=1;  end  "};
    for (const spec::Json& pattern : entry.at("split")) {
      std::vector<std::string> cut;
      for (const std::string& piece : pieces)
        for (const auto part : split(piece, Pattern(Regex(pattern.get<std::string>(), "table")),
                                     SplitBehavior::isolated))
          cut.emplace_back(part);
      pieces = std::move(cut);
    }
    EXPECT_THAT(pieces,
                testing::ElementsAre("Hello", " Ä", "pfel", " ", "12345", "\n", "\n", "你好", "，",
                                     "世界", "!", " x", "+=", "1", ";", " ", " end", "  "));
    return;
  }
  FAIL() << "no such entry";
}

TEST(GgufTokenizer, EveryPatternOfTheTableCutsText) {
  const std::string text = "Hello world's 12345 \n\n\tx = (a+b);  日本語 e\xCC\x81  ";
  const spec::Json table = spec::parse_json(kGgufTokenizersJson, "table");
  for (const spec::Json& entry : table.at("pre"))
    for (const spec::Json& pattern : entry.at("split")) {
      std::string joined;
      for (const auto part : split(text, Pattern(Regex(pattern.get<std::string>(), "table")),
                                   SplitBehavior::isolated))
        joined += part;
      EXPECT_EQ(joined, text) << pattern;
    }
}

}  // namespace
}  // namespace tessera::text::gguf_tokenizer_test
