// Unigram models and character maps: against what the `tokenizers` library and llama.cpp make of
// the same texts, and broken files. The map of released models stands in
// tokenizer_golden_test.cpp.
#include <gtest/gtest.h>

#include "tessera/base/testing.h"
#include "tessera/spec/json.h"
#include "tessera/text/tokenizer/charsmap.h"
#include "tessera/text/tokenizer/normalizer.h"
#include "tessera/text/tokenizer_files/gguf_tokenizer.h"
#include "tessera/text/tokenizer_files/tokenizer_json.h"

namespace tessera::text::unigram_test {
namespace {

using spec::Json;
using test::error_of;
using Ids = std::vector<int32_t>;

Json golden(const char* name) {
  return spec::read_json_file(std::string(TESSERA_SOURCE_DIR "/tests/golden/text/") + name);
}

TEST(Unigram, AgainstTokenizers) {
  size_t rows = 0;
  const Json expected = golden("unigram.json");
  for (const Json& entry : expected["tokenizers"]) {
    const Tokenizer t = tokenizer_from_json(entry["json"].dump(), "t");
    Json shown = entry["json"];
    shown.erase("model");
    shown.erase("normalizer");
    for (const Json& row : entry["cases"]) {
      const auto text = row["text"].get<std::string>();
      EXPECT_EQ(Json(t.encode(text, {false, true})), row["parsed"]) << shown << row["text"];
      EXPECT_EQ(Json(t.encode(text, {false, false})), row["plain"]) << shown << row["text"];
      EXPECT_EQ(Json(t.encode(text, {true, true})), row["wrapped"]) << shown << row["text"];
      EXPECT_EQ(t.decode(row["plain"].get<Ids>(), false), row["decoded"].get<std::string>());
      ++rows;
    }
  }
  EXPECT_GT(rows, 800u);
}

GgufTokenizerData gguf_data(const Json& metadata) {
  GgufTokenizerData data;
  data.model = metadata["model"];
  data.tokens = metadata["tokens"].get<std::vector<std::string>>();
  data.scores = metadata["scores"].get<std::vector<float>>();
  data.token_types = metadata["token_type"].get<std::vector<int32_t>>();
  for (const Json& byte : metadata["precompiled_charsmap"])
    data.precompiled_charsmap += static_cast<char>(byte.get<int>());
  return data;
}

TEST(Unigram, AgainstLlamaCpp) {
  const Json expected = golden("unigram_gguf.json");
  ASSERT_EQ(expected["ids"].size(), 4u);
  for (const Json& way : expected["ids"]) {
    GgufTokenizerData data = gguf_data(expected["metadata"]);
    data.add_space_prefix = way["prefix"].get<bool>();
    data.remove_extra_whitespaces = way["merge"].get<bool>();
    const Tokenizer t = tokenizer_from_gguf(std::move(data), "g");
    for (size_t i = 0; i < expected["texts"].size(); ++i)
      EXPECT_EQ(Json(t.encode(expected["texts"][i].get<std::string>())), way["ids"][i])
          << expected["texts"][i] << way["prefix"] << way["merge"];
  }
}

TEST(Unigram, WhatGgufFilesLeaveOut) {
  GgufTokenizerData data;
  data.model = "t5";
  data.tokens = {"<pad>", "</s>", "<unk>", "a"};
  data.token_types = {3, 3, 2, 1};
  data.scores = {0, 0, 0, -1};
  const Tokenizer t = tokenizer_from_gguf(data, "g");
  EXPECT_EQ(t.encode("axxa"), (Ids{3, 2, 3, 1}));
  EXPECT_EQ(t.encode("a a"), (Ids{3, 2, 3, 1}));  // neither joins spaces nor adds one
  EXPECT_EQ(t.eos(), 1);
  EXPECT_EQ(t.unk(), 2);
  EXPECT_EQ(t.pad(), 0);
  data.scores.pop_back();
  EXPECT_EQ(error_of([&] { tokenizer_from_gguf(data, "g"); }), "[g] 3 scores for 4 tokens");
  data.scores = {0, 0, 0, std::numeric_limits<float>::infinity()};
  EXPECT_EQ(error_of([&] { tokenizer_from_gguf(data, "g"); }),
            "[g] the score of token 3 is inf; expected a finite number");
  data.scores = {0, 0, 0, -1};
  data.unk_id = 4;  // of no token: the usual one
  EXPECT_EQ(tokenizer_from_gguf(data, "g").unk(), 2);
}

Json small() {
  return {{"model",
           {{"type", "Unigram"},
            {"unk_id", 0},
            {"vocab", Json::parse(R"([["<unk>", 0], ["a", -1], ["aa", -1.5], ["b", -2]])")}}}};
}

std::string error_with(const char* pointer, const Json& value, const char* text = "") {
  Json json = small();
  json[Json::json_pointer(pointer)] = value;
  return error_of([&] { tokenizer_from_json(json.dump(), "t").encode(text); });
}

TEST(Unigram, RefusesBrokenModels) {
  EXPECT_EQ(error_with("/model/unk_id", 4),
            "[t: model] unk_id = 4; expected the id of one of 4 tokens");
  EXPECT_EQ(error_with("/model/unk_id", -1),
            "[t: model] unk_id = -1; expected the id of one of 4 tokens");
  EXPECT_EQ(error_with("/model/vocab", Json::object()),
            "[t: model] \"vocab\" is an object; expected an array");
  EXPECT_EQ(error_with("/model/vocab/1", {"a", "b"}),
            "[t: model] token 1 is [\"a\",\"b\"]; expected [\"token\", log-probability]");
  EXPECT_EQ(error_with("/model/vocab/1", {"a", -1, 0}),
            "[t: model] token 1 is [\"a\",-1,0]; expected [\"token\", log-probability]");
  EXPECT_EQ(error_with("/model/vocab/3/0", "a"), "[t: model] token \"a\" has two ids, 1 and 3");
  EXPECT_EQ(error_with("/model/alpha", 0.1).substr(0, 38),
            "[t: model] key \"alpha\" is not known; e");
  EXPECT_EQ(error_with("/model/unk_id", nullptr, "ab"), "");
  EXPECT_EQ(error_with("/model/unk_id", nullptr, "aéb"),
            "[tokenizer] no token is \"é\", and the tokenizer has none for what is unknown");
}

// As files of the first versions say it.
TEST(Unigram, AListOfTokensIsOne) {
  Json json = small();
  json["model"].erase("type");
  EXPECT_EQ(tokenizer_from_json(json.dump(), "t").encode("aab"), (Ids{2, 3}));
}

// Time and memory that grow with the text alone, whether or not tokens part it.
TEST(Unigram, LongTexts) {
  const Tokenizer t = tokenizer_from_json(small().dump(), "t");
  std::string text(3'000'000, 'a');
  EXPECT_EQ(t.encode(text).size(), 1'500'000u);
  for (size_t i = 0; i < text.size(); i += 3) text[i] = 'b';
  EXPECT_EQ(t.encode(text).size(), 2'000'000u);
  EXPECT_EQ(t.encode(std::string(3'000'000, 'x')), Ids{0});
}

// One key, "xy", replaced by the text at byte 1 of the pool, in two blocks of units.
std::string map_bytes(uint32_t value = 1, const std::string& pool = std::string("\0é\0", 4)) {
  std::vector<uint32_t> units(512);
  units[0] = 256 << 10;
  const uint32_t x = 256 ^ 'x', y = 256 ^ 4 ^ 'y', leaf = 256 ^ 2;
  units[x] = 'x' | (x ^ 256 ^ 4) << 10;
  units[y] = 'y' | 1 << 8 | (y ^ leaf) << 10;
  units[leaf] = 1u << 31 | value;
  std::string bytes;
  const auto add = [&](uint32_t number) {
    for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(number >> shift & 0xFF);
  };
  add(512 * 4);
  for (const uint32_t unit : units) add(unit);
  return bytes + pool;
}

std::string map_error(const std::string& bytes) {
  return error_of([&] { Charsmap(bytes, "m"); });
}

TEST(Charsmap, FindsKeys) {
  const Charsmap map(map_bytes(), "m");
  EXPECT_FALSE(map.shortest("x"));
  EXPECT_FALSE(map.shortest("y"));
  EXPECT_FALSE(map.longest(""));
  ASSERT_TRUE(map.longest("xyz"));
  EXPECT_EQ(map.longest("xyz")->size, 2u);
  EXPECT_EQ(map.longest("xyz")->replacement, "é");
  EXPECT_EQ(Charsmap(map_bytes(0), "m").shortest("xy")->replacement, "");
  // a replacement that nothing ends goes on to the end of the pool
  EXPECT_EQ(Charsmap(map_bytes(0, "ab"), "m").shortest("xy")->replacement, "ab");
}

TEST(Charsmap, RefusesPathsThatLeadAstray) {
  EXPECT_EQ(map_error(""), "[m] precompiled_charsmap: a trie of 0 bytes in 0");
  EXPECT_EQ(map_error(map_bytes() + std::string(4 << 20, 'x')),
            "[m] precompiled_charsmap: 4196360 bytes; at most 4194304 are read");
  EXPECT_EQ(map_error(map_bytes().substr(0, 2000)),
            "[m] precompiled_charsmap: a trie of 2048 bytes in 2000");
  EXPECT_EQ(map_error(map_bytes(4)),
            "[m] precompiled_charsmap: unit 381 names a replacement at byte 4 of 4, where no "
            "character begins");
  EXPECT_NE(map_error(map_bytes(2)).find("at byte 2 of 4"), std::string::npos);
  EXPECT_EQ(map_error(map_bytes(0, "\xC3")),
            "[m] precompiled_charsmap: the replacements are not valid UTF-8");
  std::string far = map_bytes();
  far[4 + 4 * (256 ^ 'x') + 2] = '\x7F';
  EXPECT_EQ(map_error(far), "[m] precompiled_charsmap: unit 376 of 512 leads to 7935");
  far = map_bytes();
  far[4 + 1] = '\x02';  // the root, by a scaled offset
  far[4 + 3] = '\x7F';
  EXPECT_NE(map_error(far).find("unit 0 of 512 leads to"), std::string::npos);
}

TEST(Charsmap, InTokenizerJson) {
  const auto error = [](const Json& value) {
    return error_of([&] {
      make_normalizer({{"type", "Precompiled"}, {"precompiled_charsmap", value}}, "n");
    });
  };
  EXPECT_EQ(error("A"), "[n] \"precompiled_charsmap\" is not base64");
  EXPECT_EQ(error("AA=A"), "[n] \"precompiled_charsmap\" is not base64");
  EXPECT_EQ(error("AAB="), "[n] \"precompiled_charsmap\" is not base64");
  EXPECT_EQ(error("AA=="), "[n] precompiled_charsmap: a trie of 0 bytes in 1");
  EXPECT_EQ(error(""), "[n] precompiled_charsmap: a trie of 0 bytes in 0");
  EXPECT_EQ(error(1), "[n] \"precompiled_charsmap\" is an integer; expected a string");
}

// A marvel of the library: of a cluster of less than six bytes all that stands behind a key is
// lost.
TEST(Charsmap, ReplacesClustersOrTheLongestKey) {
  const std::string text = "xy\u0301 xy\u0301\u0301 xy xyxy";
  EXPECT_EQ(normalize(make_precompiled(Charsmap(map_bytes(), "m"), true).get(), text).text,
            "é\u0301 é\u0301\u0301 é éé");
  EXPECT_EQ(normalize(make_precompiled(Charsmap(map_bytes(), "m"), false).get(), text).text, text);
}

}  // namespace
}  // namespace tessera::text::unigram_test
