// A tokenizer.json with a Unigram model as the metadata of a GGUF file.
#include <gtest/gtest.h>

#include "tessera/base/base64.h"
#include "tessera/base/mapped_file.h"
#include "tessera/base/testing.h"
#include "tessera/convert/gguf_tokenizer.h"
#include "tessera/convert/tokenizer.h"
#include "tessera/spec/json.h"
#include "tessera/text/tokenizer/charsmap.h"

namespace tessera::convert::gguf_unigram_test {
namespace {

using spec::Json;

// A map of one key, in base64.
std::string some_map() {
  const std::string seed =
      read_text_file(TESSERA_SOURCE_DIR "/tests/fuzz/corpus/tokenizer_json/unigram_0.json");
  const Json json = spec::parse_json(seed.substr(0, seed.find('\0')), "seed");
  return json["normalizer"]["normalizers"][1]["precompiled_charsmap"];
}

Json added(int id, const char* content, bool special) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", special}};
}

Json unigram_json() {
  const Json metaspace{{"type", "Metaspace"}, {"replacement", "\u2581"}};
  return {{"added_tokens",
           {added(0, "<pad>", true), added(1, "</s>", true), added(2, "<unk>", true),
            added(7, "<tool>", false)}},
          {"normalizer",
           {{"type", "Sequence"},
            {"normalizers",
             {{{"type", "Precompiled"}, {"precompiled_charsmap", some_map()}},
              {{"type", "Strip"}, {"strip_left", false}, {"strip_right", true}},
              {{"type", "Replace"}, {"pattern", {{"Regex", " {2,}"}}}, {"content", " "}}}}}},
          {"pre_tokenizer", metaspace},
          {"post_processor",
           {{"type", "TemplateProcessing"},
            {"single", {{{"Sequence", {{"id", "A"}}}}, {{"SpecialToken", {{"id", "</s>"}}}}}},
            {"special_tokens", {{"</s>", {{"id", "</s>"}, {"ids", {1}}, {"tokens", {"</s>"}}}}}}}},
          {"decoder", metaspace},
          {"model",
           {{"type", "Unigram"},
            {"unk_id", 2},
            {"vocab", Json::parse(R"([["<pad>", 0], ["</s>", 0], ["<unk>", 0], ["\u2581", -2],
                                      ["o", -3.5], ["\u2581a", -2.5]])")}}}};
}

std::vector<format::GgufEntry> entries_of(const Json& json) {
  const test::TemporaryFolder scratch;
  scratch.write("tokenizer.json", json.dump());
  return gguf_tokenizer_entries(scratch / "tokenizer.json", 9);
}

TEST(GgufUnigram, IsWritten) {
  const auto entries = entries_of(unigram_json());
  const auto said = [&](const std::string& key) {
    for (const format::GgufEntry& entry : entries)
      if (entry.key == "tokenizer.ggml." + key) return entry.value;
    throw std::runtime_error(key);
  };
  EXPECT_EQ(said("model").as_string(), "t5");
  EXPECT_EQ(said("unknown_token_id").as_i64(), 2);
  EXPECT_EQ(said("eos_token_id").as_i64(), 1);
  EXPECT_TRUE(said("add_eos_token").as_bool());
  EXPECT_TRUE(said("add_space_prefix").as_bool());
  EXPECT_TRUE(said("remove_extra_whitespaces").as_bool());
  std::string map;
  for (const int64_t byte : said("precompiled_charsmap").as_integers())
    map += static_cast<char>(byte);
  EXPECT_EQ(map, bytes_of_base64(some_map()));
  // rows of the model without a token
  EXPECT_EQ(said("token_type").as_integers(), (std::vector<int64_t>{3, 3, 2, 1, 1, 1, 5, 4, 5}));
  EXPECT_EQ(said("scores").as_numbers(),
            (std::vector<double>{0, 0, 0, -2, -3.5, -2.5, -10000, -10000, -10000}));
}

TEST(GgufUnigram, BecomesTokenizerJson) {
  const test::TemporaryFolder scratch, folder;
  scratch.write("tokenizer.json", unigram_json().dump());
  format::write_gguf(scratch / "t.gguf", gguf_tokenizer_entries(scratch / "tokenizer.json", 9), {});
  EXPECT_EQ(copy_tokenizer_to_hf(scratch / "t.gguf", folder.path()), "");
  ASSERT_TRUE(std::filesystem::exists(folder / "tokenizer.json"));
  const text::Tokenizer wanted = find_tokenizer(scratch / "t.gguf"),
                        got = find_tokenizer(folder.path());
  for (const char* text : {"a o", "  a  oo   x ", "", "<tool>a</s>", "a\n o"})
    for (const bool parse : {false, true})
      EXPECT_EQ(got.encode(text, {true, parse}), wanted.encode(text, {true, parse})) << text;
  EXPECT_EQ(got.eos(), wanted.eos());
}

// What the files cannot say: other white space that parts words, and bytes to fall back on.
TEST(GgufUnigram, IsRefusedWhereFilesWouldCutOtherwise) {
  for (const auto& [pointer, value] :
       {std::pair<const char*, Json>{"/pre_tokenizer", {{"type", "Whitespace"}}},
        {"/model/byte_fallback", true},
        {"/normalizer", {{"type", "Lowercase"}}}}) {
    Json json = unigram_json();
    json[Json::json_pointer(pointer)] = value;
    if (std::string_view(pointer) == "/model/byte_fallback")
      json["model"]["vocab"].push_back({"<0x77>", -9});  // w
    EXPECT_NE(test::error_of([&] { entries_of(json); }).find("cuts text as this one does"),
              std::string::npos)
        << pointer;
  }
}

}  // namespace
}  // namespace tessera::convert::gguf_unigram_test
