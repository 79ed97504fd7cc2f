// WordPiece, and the vocabulary files that imply it. What the components do with real texts stands
// in components_test.cpp and tokenizer_golden_test.cpp.
#include <gtest/gtest.h>

#include "tessera/base/testing.h"
#include "tessera/spec/json.h"
#include "tessera/text/tokenizer_files/tokenizer_json.h"
#include "tessera/text/tokenizer_files/vocab_file.h"

namespace tessera::text::word_piece_test {
namespace {

using spec::Json;
using test::error_of;
using Ids = std::vector<int32_t>;

constexpr char kVocab[] =
    "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nun\n##aff\n##able\naffable\n!\ncafe\ncafé\nCafe\n日\n";

Json word_piece_json() {
  return {{"model",
           {{"type", "WordPiece"},
            {"vocab", {{"[UNK]", 0}, {"a", 1}, {"##a", 2}, {"##ab", 3}, {"b", 4}}}}}};
}

std::string error_with(const char* pointer, const Json& value) {
  Json json = word_piece_json();
  json[Json::json_pointer(pointer)] = value;
  return error_of([&] { tokenizer_from_json(json.dump(), "t"); });
}

TEST(WordPiece, LongestFirstThenTheRest) {
  const Tokenizer t = tokenizer_from_json(word_piece_json().dump(), "t");
  EXPECT_EQ(t.encode("aab"), (Ids{1, 3}));
  EXPECT_EQ(t.encode("aaab"), (Ids{1, 2, 3}));
  EXPECT_EQ(t.encode("ba"), (Ids{4, 2}));
  EXPECT_EQ(t.encode("abb"), Ids{0});  // "##ab" leaves no other cut
  EXPECT_EQ(t.encode(std::string(100, 'a')).size(), 100u);
  EXPECT_EQ(t.encode(std::string(101, 'a')), Ids{0});
}

TEST(WordPiece, RefusesWhatItCannotObey) {
  EXPECT_EQ(error_with("/model/unk_token", "[NONE]"),
            "[t: model] unk_token \"[NONE]\" is not in the vocabulary");
  EXPECT_EQ(error_with("/model/max_input_chars_per_word", 1001),
            "[t: model] max_input_chars_per_word = 1001; expected 0 to 1000");
  EXPECT_EQ(error_with("/model/max_input_chars_per_word", -1),
            "[t: model] max_input_chars_per_word = -1; expected 0 to 1000");
  EXPECT_EQ(error_with("/model/vocab/a", 0), "[t: model] id 0 has two tokens, \"[UNK]\" and \"a\"");
  EXPECT_EQ(error_with("/model/vocab", Json::array()),
            "[t: model] \"vocab\" is an array; expected an object");
  EXPECT_EQ(error_with("/model/merges", Json::array()).substr(0, 39),
            "[t: model] key \"merges\" is not known; e");
  EXPECT_EQ(error_with("/model/continuing_subword_prefix", 3),
            "[t: model] \"continuing_subword_prefix\" is an integer; expected a string");
  EXPECT_EQ(error_with("/normalizer", {{"type", "BertNormalizer"}, {"lower", true}}).substr(0, 39),
            "[t: normalizer] key \"lower\" is not know");
  EXPECT_EQ(error_with("/normalizer", {{"type", "BertNormalizer"}, {"strip_accents", "yes"}}),
            "[t: normalizer] \"strip_accents\" is a string; expected true or false");
  EXPECT_EQ(error_with("/pre_tokenizer", {{"type", "BertPreTokenizer"}, {"x", 1}}).substr(0, 38),
            "[t: pre_tokenizer] key \"x\" is not know");
  EXPECT_EQ(error_with("/decoder", {{"type", "WordPiece"}, {"cleanup", 1}}),
            "[t: decoder] \"cleanup\" is an integer; expected true or false");
}

// A search that starts anew at every character would not end.
TEST(WordPiece, LongWordsAreRead) {
  Json json = word_piece_json();
  std::string token = "##";
  for (int i = 0; i < 500; ++i) token += 'a';
  json["model"]["vocab"][token + "c"] = 5;  // each search goes far and comes back
  json["model"]["max_input_chars_per_word"] = 1000;
  json["pre_tokenizer"] = {{"type", "WhitespaceSplit"}};
  const Tokenizer t = tokenizer_from_json(json.dump(), "t");
  std::string text(100, 'a');
  for (int i = 0; i < 100; ++i) text += " " + std::string(900 + static_cast<size_t>(i), 'a');
  text += " " + std::string(10'000'000, 'a');
  const Ids ids = t.encode(text);
  EXPECT_EQ(ids.back(), 0);
}

TEST(VocabFile, IsBertsTokenizer) {
  const Tokenizer t = tokenizer_from_vocab(kVocab, "v");
  EXPECT_EQ(t.vocab_size(), 14);
  EXPECT_EQ(t.encode("UnAffable! unaffable"), (Ids{2, 5, 6, 7, 9, 5, 6, 7, 3}));
  EXPECT_EQ(t.encode("Café日日", {false, false}), (Ids{10, 13, 13}));
  EXPECT_EQ(t.encode("[MASK] x", {false, true}), (Ids{4, 1}));
  EXPECT_EQ(t.surround(Ids{5, 9}), (Ids{2, 5, 9, 3}));
  EXPECT_EQ(t.surround(Ids{5, 9}, Ids{6}).ids, (Ids{2, 5, 9, 3, 6, 3}));
  EXPECT_EQ(t.surround(Ids{5, 9}, Ids{6}).second, 4u);
  EXPECT_EQ(t.decode(t.encode("unaffable!")), "unaffable!");
  EXPECT_EQ(t.bos(), 2);
  EXPECT_EQ(t.eos(), 3);
  EXPECT_EQ(t.unk(), 1);
  EXPECT_EQ(t.pad(), 0);
  EXPECT_TRUE(t.is_special(4));
  EXPECT_FALSE(t.is_special(5));
}

TEST(VocabFile, ConfigSaysHowTextsAreNormalized) {
  const auto ids = [](const char* config, const char* text) {
    return tokenizer_from_vocab(kVocab, "v", {config}).encode(text, {false, false});
  };
  EXPECT_EQ(ids(R"({"do_lower_case": false})", "Cafe cafe Café"), (Ids{12, 10, 1}));
  EXPECT_EQ(ids(R"({"strip_accents": false})", "Café"), Ids{11});
  EXPECT_EQ(ids(R"({"tokenize_chinese_chars": false})", "日日"), Ids{1});
  const Tokenizer t =
      tokenizer_from_vocab(kVocab, "v", {R"({"cls_token": "un", "sep_token": {"content": "!"}})"});
  EXPECT_EQ(t.encode("cafe"), (Ids{5, 10, 9}));
}

TEST(VocabFile, LinesEndEitherWay) {
  const Tokenizer t = tokenizer_from_vocab("[UNK]\r\n[CLS]\r\n[SEP]\r\na", "v");
  EXPECT_EQ(t.encode("a b"), (Ids{1, 3, 0, 2}));
  EXPECT_EQ(t.pad(), std::nullopt);
}

TEST(VocabFile, RefusesWhatIsNone) {
  EXPECT_EQ(error_of([] { tokenizer_from_vocab("[UNK]\n[CLS]\n", "v"); }),
            "[v] no line holds the sep_token \"[SEP]\"; tokenizer_config.json may name another");
  EXPECT_EQ(error_of([] { tokenizer_from_vocab("[UNK]\n[CLS]\n[SEP]\na\na\n", "v"); }),
            "[v] token \"a\" has two ids, 3 and 4");
  EXPECT_EQ(error_of([] { tokenizer_from_vocab("[UNK]\n\xFF\n", "v"); }),
            "[v] bytes that are not UTF-8; expected one token a line");
  EXPECT_EQ(error_of([] { tokenizer_from_vocab(kVocab, "v", {R"({"do_lower_case": 1})"}); }),
            "[v] tokenizer_config.json: \"do_lower_case\" is an integer; expected true or false");
  EXPECT_NE(error_of([] { tokenizer_from_vocab(kVocab, "v", {"[]"}); }).find("expected an object"),
            std::string::npos);
}

// Ids of transformers 5.23, whose BertTokenizer read the same files.
TEST(VocabFile, AddedTokens) {
  const TokenizerCompanions config{
      R"({"added_tokens_decoder": {"14": {"content": "<New>"}, "15": {"content": "[X]", "special": true},
          "16": {"content": "!!", "normalized": false, "lstrip": true, "rstrip": true},
          "5": {"content": "un", "single_word": true}}})"};
  const Tokenizer t = tokenizer_from_vocab(kVocab, "v", config);
  EXPECT_EQ(t.vocab_size(), 17);
  EXPECT_EQ(t.encode("cafe <new> [X] cafe", {true, true}), (Ids{2, 10, 14, 15, 10, 3}));
  EXPECT_EQ(t.encode("Café<NEW>un unaffable! !! !", {false, true}),
            (Ids{10, 14, 5, 5, 6, 7, 9, 16, 9}));
  EXPECT_EQ(t.encode("[X]", {false, false}), (Ids{1, 1, 1}));  // special ones stay text
  EXPECT_TRUE(t.is_special(15));
  EXPECT_FALSE(t.is_special(14));
}

TEST(VocabFile, ElderFilesOfAddedTokens) {
  const TokenizerCompanions files{
      "{}", R"({"[X]": 15, "<new>": 14})",
      R"({"mask_token": {"content": "[MASK]", "lstrip": true}, "additional_special_tokens": ["[X]"]})"};
  const Tokenizer t = tokenizer_from_vocab(kVocab, "v", files);
  EXPECT_EQ(t.encode("cafe  [MASK] <NEW>[X]", {false, true}), (Ids{10, 4, 14, 15}));
  EXPECT_TRUE(t.is_special(15));
  // the configuration's own list is the younger form
  const Tokenizer young =
      tokenizer_from_vocab(kVocab, "v", {R"({"added_tokens_decoder": {}})", R"({"<new>": 14})"});
  EXPECT_EQ(young.vocab_size(), 14);
}

TEST(VocabFile, SpecialTokensWithoutALineComeAfterTheLines) {
  const auto t = [](const char* config) { return tokenizer_from_vocab(kVocab, "v", {config}); };
  EXPECT_EQ(t(R"({"additional_special_tokens": ["<e>", {"content": "<f>"}], "bos_token": "<s>"})")
                .encode("<s><e><f>", {false, true}),
            (Ids{14, 15, 16}));
  EXPECT_EQ(t(R"({"extra_special_tokens": {"image_token": "<i>"}})").id("<i>"), 14);
  // the end of a text may be an added token
  EXPECT_EQ(t(R"({"sep_token": "<z>", "added_tokens_decoder": {"14": {"content": "<z>"}}})")
                .encode("cafe"),
            (Ids{2, 10, 14}));
}

TEST(VocabFile, RefusesWhatWouldChangeIds) {
  const auto error = [](const std::string& config, const char* added = "") {
    return error_of([&] { tokenizer_from_vocab(kVocab, "v", {config, added}); });
  };
  EXPECT_EQ(error(R"({"do_basic_tokenize": false})"),
            "[v: tokenizer_config.json] do_basic_tokenize = false is not supported; expected true");
  EXPECT_EQ(error(R"({"never_split": ["cafe"]})"),
            "[v: tokenizer_config.json] never_split = [\"cafe\"] is not supported; expected none");
  EXPECT_EQ(
      error(R"({"unk_token": 5})"),
      "[v: tokenizer_config.json: unk_token] found an integer; expected a string or an object "
      "with \"content\"");
  EXPECT_EQ(error(R"({"tokenizer_class": "XLNetTokenizer"})"),
            "[v: tokenizer_config.json] tokenizer_class = \"XLNetTokenizer\" is not supported; "
            "expected BertTokenizer or a relative, or a tokenizer.json in the folder");
  EXPECT_EQ(error(R"({"added_tokens_decoder": {"20": {"content": "x"}}})"),
            "[v] added token \"x\" has id 20; expected 14, the next one after the lines");
  EXPECT_EQ(error(R"({"added_tokens_decoder": {"20": {"content": "un"}}})"),
            "[v] added token \"un\" has id 20; expected 5, that of its line");
  EXPECT_EQ(error(R"({"added_tokens_decoder": {"x": {"content": "x"}}})"),
            "[v: tokenizer_config.json: added_tokens_decoder] key \"x\"; expected a token id");
  EXPECT_EQ(error(R"({"added_tokens_decoder": {"14": "x"}})"),
            "[v: tokenizer_config.json: added_tokens_decoder] token 14 is a string; expected an "
            "object with \"content\"");
  EXPECT_EQ(error(R"({"added_tokens_decoder": []})"),
            "[v: tokenizer_config.json: added_tokens_decoder] found an array; expected an object");
  EXPECT_EQ(error("{}", R"({"x": "y"})"),
            "[v: added_tokens.json] the id of \"x\" is \"y\"; expected an integer from 0");
  EXPECT_EQ(error(R"({"never_split": null, "do_basic_tokenize": true, "tokenizer_class":
                      "BertTokenizerFast", "extra_special_tokens": {}})"),
            "");
}

}  // namespace
}  // namespace tessera::text::word_piece_test
