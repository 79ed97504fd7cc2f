#include "tessera/text/tokenizer_files/gguf_tokenizer.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/testing.h"
#include "tessera/spec/json.h"
#include "tessera/text/tokenizer/byte_level.h"
#include "tessera/text/tokenizer/split.h"
#include "tessera/text/tokenizer_files/gguf_tokenizer_json.h"
#include "tessera/text/tokenizer_files/tokenizer_json.h"

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

// Gemma 4: the merges themselves, over the whole text.
TEST(GgufTokenizer, MergesOfMarkedTokens) {
  GgufTokenizerData data = scores();
  data.model = "gemma4";
  data.scores.clear();
  data.tokens.insert(data.tokens.end(), {"\n", "\n\n", "b▁a"});
  data.token_types.insert(data.token_types.end(), {1, 1, 1});
  data.merges = {"\n \n", "b ▁a", "▁ a", "a b", "▁a b"};
  const auto id = [&](std::string_view token) {
    return static_cast<int32_t>(std::find(data.tokens.begin(), data.tokens.end(), token) -
                                data.tokens.begin());
  };
  const Tokenizer t = tokenizer_from_gguf(data, "g");
  // no space before a text, and none of the words is split off first
  EXPECT_EQ(t.encode("ab"), (Ids{1, id("ab")}));
  EXPECT_EQ(t.encode("b a b\n\nb", {false, false}),
            (Ids{id("b▁a"), id("▁"), id("b"), id("\n\n"), id("b")}));
  EXPECT_EQ(t.encode("é", {false, false}), (Ids{3 + 0xC3, 3 + 0xA9}));
  EXPECT_EQ(t.decode(t.encode(" ab a éb \n")), " ab a éb \n");
  for (const int32_t token : t.encode("<s>", {false, false})) EXPECT_NE(token, 1);
  const TokenizerJson json = tokenizer_json_of(data, "g");
  const Tokenizer again = tokenizer_from_json(json.tokenizer, "t", {json.config});
  for (const char* text : {"ab", "b a b\n\nb", " ab a éb \n", "<s>", ""})
    EXPECT_EQ(again.encode(text), t.encode(text)) << text;
  data.merges.emplace_back("x");
  EXPECT_EQ(error_of(data), "[g] merge 5 is \"x\"; expected \"left right\"");
}

// What stands in a vocab.txt as un, ##aff, ##able, !, cafe, café, Cafe, 日, and a user-defined
// token.
GgufTokenizerData word_piece() {
  GgufTokenizerData data;
  data.model = "bert";
  data.tokens = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "▁un", "aff",    "able",
                 "▁!",    "▁cafe", "▁café", "▁Cafe", "▁日", "▁<tool>"};
  data.token_types = {3, 3, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 4};
  data.pad_id = 0;
  data.unk_id = 1;
  data.bos_id = 2;
  data.sep_id = 3;
  return data;
}

TEST(GgufTokenizer, WordPiece) {
  const Tokenizer t = tokenizer_from_gguf(word_piece(), "g");
  EXPECT_EQ(t.encode("UnAffable! unaffable"), (Ids{2, 4, 5, 6, 7, 4, 5, 6, 3}));
  EXPECT_EQ(t.encode("Café日日\u200b", {false, false}), (Ids{8, 11, 11}));
  EXPECT_EQ(t.encode("un<tool>un", {false, false}), (Ids{4, 12, 4}));
  // special tokens are no text
  EXPECT_EQ(t.encode("[SEP]", {false, false}), (Ids{1, 1, 1}));
  EXPECT_EQ(t.encode("[SEP]un", {false, true}), (Ids{3, 4}));
  EXPECT_EQ(t.surround(Ids{4}, Ids{7}).ids, (Ids{2, 4, 3, 7, 3}));
  EXPECT_EQ(t.decode(t.encode("unaffable!")), "unaffable!");
  EXPECT_EQ(t.token(5), "##aff");
  EXPECT_EQ(t.bos(), 2);
  EXPECT_EQ(t.eos(), 3);
  EXPECT_EQ(t.unk(), 1);
  EXPECT_EQ(t.pad(), 0);
  EXPECT_TRUE(t.is_special(1));
}

TEST(GgufTokenizer, WordPieceNormalizesAsTheFileSays) {
  const auto ids = [](std::optional<bool> lowercase, std::optional<bool> strip, const char* text) {
    GgufTokenizerData data = word_piece();
    data.lowercase = lowercase;
    data.strip_accents = strip;
    return tokenizer_from_gguf(data, "g").encode(text, {false, false});
  };
  EXPECT_EQ(ids(std::nullopt, std::nullopt, "Café"), Ids{8});
  EXPECT_EQ(ids(true, false, "Café"), Ids{9});
  EXPECT_EQ(ids(false, std::nullopt, "café"), Ids{9});
  EXPECT_EQ(ids(false, std::nullopt, "Cafe"), Ids{10});
  EXPECT_EQ(ids(false, true, "Café"), Ids{10});
}

TEST(GgufTokenizer, WordPieceHasBertsTokensWhereTheFileNamesNone) {
  GgufTokenizerData data = word_piece();
  data.pad_id = data.unk_id = data.bos_id = data.sep_id = std::nullopt;
  EXPECT_EQ(error_of(data),
            "[g] tokenizer.ggml.bos_token_id is missing, and of the usual 101 there is none");
  data.cls_id = 2;  // of older files
  EXPECT_EQ(error_of(data),
            "[g] tokenizer.ggml.unknown_token_id is missing, and of the usual 100 there is none");
  data.cls_id.reset();
  for (size_t id = data.tokens.size(); id < 104; ++id) {
    data.tokens.push_back(id >= 100 ? fmt::format("<{}>", id) : fmt::format("▁w{}", id));
    data.token_types.push_back(id >= 100 ? 3 : 1);
  }
  EXPECT_EQ(tokenizer_from_gguf(data, "g").encode("un x"), (Ids{101, 4, 100, 102}));
  data.sep_id = 104;  // of no token
  EXPECT_EQ(tokenizer_from_gguf(data, "g").encode("un x"), (Ids{101, 4, 100, 102}));
  data = word_piece();
  data.tokens[6] = "##aff";
  data.tokens[5] = "▁####aff";
  EXPECT_EQ(error_of(data), "[g] token \"####aff\" has two ids, 5 and 6");
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

// As llama.cpp, which warns of such ids and takes none (load of llama_vocab).
TEST(GgufTokenizer, SpecialIdsOfNoTokenAreNotUsed) {
  const auto notes = [](auto change) {
    GgufTokenizerData data = byte_level();
    change(data);
    const Tokenizer t = tokenizer_from_gguf(data, "g");
    EXPECT_EQ(t.encode("he"), Ids{256});
    return t.notes();
  };
  for (const int64_t id : {int64_t{260}, int64_t{4294967295}, int64_t{-1}}) {
    const std::string said =
        fmt::format(" = {} is not one of the 260 token ids; it is not used", id);
    EXPECT_THAT(notes([&](auto& d) { d.bos_id = id; }),
                testing::ElementsAre("tokenizer.ggml.bos_token_id" + said));
    EXPECT_THAT(notes([&](auto& d) { d.eos_id = id; }),
                testing::ElementsAre("tokenizer.ggml.eos_token_id" + said));
    EXPECT_THAT(notes([&](auto& d) { d.unk_id = d.pad_id = id; }),
                testing::ElementsAre("tokenizer.ggml.unknown_token_id" + said,
                                     "tokenizer.ggml.padding_token_id" + said));
    EXPECT_THAT(notes([&](auto& d) { d.sep_id = d.cls_id = d.eot_id = d.eom_id = id; }),
                testing::SizeIs(4));
  }
  EXPECT_THAT(notes([](auto&) {}), testing::IsEmpty());
  // what must be added cannot be left out
  GgufTokenizerData data = byte_level();
  data.bos_id = 260;
  data.add_bos = true;
  EXPECT_EQ(error_of(data),
            "[g] tokenizer.ggml.add_bos_token is true, but the file names no such token");
}

TEST(GgufTokenizer, AFileWithoutAPreTokenizerIsCutByTheDefaultOne) {
  GgufTokenizerData data = byte_level();
  data.pre.clear();
  const Tokenizer t = tokenizer_from_gguf(data, "g");
  ASSERT_THAT(t.notes(), testing::SizeIs(1));
  EXPECT_THAT(t.notes()[0], testing::HasSubstr("tokenizer.ggml.pre is missing"));
  data.pre = "default";
  EXPECT_EQ(t.encode("he, he++ 12345"), tokenizer_from_gguf(data, "g").encode("he, he++ 12345"));
}

// Qwen3-Embedding: texts end with another token than answers.
TEST(GgufTokenizer, TheEndOfAnAnswerMayBeAnotherToken) {
  GgufTokenizerData data = byte_level();
  data.tokens.push_back("<|turn|>");
  data.token_types.push_back(3);
  data.add_eos = true;
  data.eot_id = 260;
  const Tokenizer t = tokenizer_from_gguf(data, "g");
  EXPECT_EQ(t.encode("he"), (Ids{256, 258}));
  EXPECT_EQ(t.eos(), 258);
  EXPECT_EQ(t.ends(), (Ids{258, 260}));
  const TokenizerJson json = tokenizer_json_of(data, "g");
  const Tokenizer back = tokenizer_from_json(json.tokenizer, "j", {json.config});
  EXPECT_EQ(back.encode("he"), (Ids{256, 258}));
  EXPECT_EQ(back.eos(), 260);
}

TEST(GgufTokenizer, BecomesTokenizerJson) {
  GgufTokenizerData llama3 = byte_level(), framed = scores(), bare = scores();
  llama3.pre = "llama-bpe";
  llama3.chat_template = "{{ x }}";
  llama3.tool_template = "{{ y }}";
  framed.add_eos = true;
  framed.pad_id = 0;
  bare.add_space_prefix = false;
  bare.add_bos = false;
  for (const GgufTokenizerData& data : {byte_level(), llama3, scores(), framed, bare}) {
    const Tokenizer wanted = tokenizer_from_gguf(data, "g");
    const TokenizerJson json = tokenizer_json_of(data, "g");
    const Tokenizer got = tokenizer_from_json(json.tokenizer, "j", {json.config});
    for (const char* text :
         {"he he", "12 he<tool>he <|end|>", "ab aéb <s>ab</s> ", "", " ", "\n\n a"})
      for (const bool special : {false, true})
        for (const bool parse : {false, true}) {
          const auto ids = wanted.encode(text, {special, parse});
          EXPECT_EQ(got.encode(text, {special, parse}), ids) << text;
          EXPECT_EQ(got.decode(ids), wanted.decode(ids)) << text;
        }
    EXPECT_EQ(got.bos(), wanted.bos());
    EXPECT_EQ(got.eos(), wanted.eos());
    EXPECT_EQ(got.unk(), wanted.unk());
    EXPECT_EQ(got.pad(), wanted.pad());
    EXPECT_EQ(got.chat_template(), wanted.chat_template());
    EXPECT_EQ(got.tool_template(), wanted.tool_template());
  }
  GgufTokenizerData twice = byte_level();
  twice.tokens[259] = "<|end|>";
  EXPECT_THAT(test::error_of([&] { tokenizer_json_of(twice, "g"); }), testing::HasSubstr("token"));
}

// Against the PyPI package tokenizers with the same patterns (tools/golden/gguf_pre.py).
TEST(GgufTokenizer, PatternsCutOneAfterAnother) {
  const spec::Json table = spec::parse_json(kGgufTokenizersJson, "table"),
                   golden = spec::read_json_file(std::filesystem::path(TESSERA_SOURCE_DIR) /
                                                 "tests/golden/text/gguf_pre.json");
  for (const spec::Json& entry : table.at("pre")) {
    const std::string name = entry.at("names")[0];
    std::vector<std::string> pieces = {golden.at("text").get<std::string>()};
    for (const spec::Json& pattern : entry.at("split")) {
      const Pattern compiled(Regex(pattern.get<std::string>(), "table"));
      std::vector<std::string> cut;
      for (const std::string& piece : pieces)
        for (const auto part : split(piece, compiled, SplitBehavior::isolated))
          cut.emplace_back(part);
      pieces = std::move(cut);
    }
    EXPECT_EQ(pieces, golden.at("pieces").at(name).get<std::vector<std::string>>()) << name;
  }
}

}  // namespace
}  // namespace tessera::text::gguf_tokenizer_test
