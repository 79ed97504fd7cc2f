// Tokenizers into GGUF metadata: WordPiece. That of byte-level files is written with every golden.
#include "tessera/convert/gguf_tokenizer.h"

#include <gmock/gmock.h>

#include "tessera/base/base64.h"
#include "tessera/base/testing.h"
#include "tessera/convert/tokenizer.h"
#include "tessera/spec/json.h"

namespace tessera::convert::gguf_tokenizer_test {
namespace {

using spec::Json;
using testing::HasSubstr;
using Ids = std::vector<int32_t>;

constexpr char kVocab[] =
    "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nun\n##aff\n##able\n!\ncafe\ncafé\nCafe\n日\n";
constexpr char kText[] = "UnAffable! Cafe CAFÉ 日日 un";

class WordPieceGguf : public testing::Test {
 protected:
  std::vector<format::GgufEntry> entries(int64_t vocab = 13) {
    auto entries = gguf_tokenizer_entries(folder_.path(), vocab);
    format::write_gguf(folder_ / "written.gguf", entries, {});
    return entries;
  }
  std::string error(int64_t vocab = 13) {
    return test::error_of([&] { entries(vocab); });
  }
  void expect_alike() {
    const text::Tokenizer written = find_tokenizer(folder_ / "written.gguf"),
                          original = find_tokenizer(folder_.path());
    EXPECT_EQ(written.encode(kText), original.encode(kText));
    EXPECT_EQ(written.bos(), original.bos());
    EXPECT_EQ(written.eos(), original.eos());
    EXPECT_EQ(written.unk(), 1);
    EXPECT_EQ(written.pad(), 0);
  }
  std::string text_of(const char* key) {
    for (const format::GgufEntry& entry : entries())
      if (entry.key == std::string("tokenizer.ggml.") + key) return entry.value.text();
    return "none";
  }
  /// The vocabulary as a tokenizer.json.
  Json json() const {
    Json vocab;
    int id = 0;
    for (std::string_view rest = kVocab; !rest.empty(); rest.remove_prefix(rest.find('\n') + 1))
      vocab[std::string(rest.substr(0, rest.find('\n')))] = id++;
    return {{"model", {{"type", "WordPiece"}, {"vocab", vocab}}},
            {"normalizer", {{"type", "BertNormalizer"}}},
            {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
            {"post_processor",
             {{"type", "BertProcessing"}, {"sep", {"[SEP]", 3}}, {"cls", {"[CLS]", 2}}}}};
  }

  test::TemporaryFolder folder_;
};

TEST_F(WordPieceGguf, OfAVocabularyFile) {
  folder_.write("vocab.txt", kVocab);
  EXPECT_EQ(text_of("model"), "\"bert\"");
  EXPECT_EQ(text_of("normalizer.lowercase"), "true");
  EXPECT_EQ(text_of("normalizer.strip_accents"), "true");
  EXPECT_EQ(text_of("bos_token_id"), "2");
  EXPECT_EQ(text_of("seperator_token_id"), "3");
  expect_alike();
  entries(15);  // rows of the embedding without a token
  expect_alike();
  folder_.write("tokenizer_config.json", R"({"do_lower_case": false})");
  EXPECT_EQ(text_of("normalizer.lowercase"), "false");
  EXPECT_EQ(text_of("normalizer.strip_accents"), "false");
  expect_alike();
  folder_.write("tokenizer_config.json", R"({"strip_accents": false})");
  EXPECT_EQ(text_of("normalizer.lowercase"), "true");
  EXPECT_EQ(text_of("normalizer.strip_accents"), "false");
  expect_alike();
}

TEST_F(WordPieceGguf, OfATokenizerJson) {
  folder_.write("tokenizer.json", json().dump());
  entries();
  expect_alike();
}

TEST_F(WordPieceGguf, RefusesWhatIsCutOtherwise) {
  const auto with = [&](const char* pointer, const Json& value) {
    Json changed = json();
    changed[Json::json_pointer(pointer)] = value;
    folder_.write("tokenizer.json", changed.dump());
    return error();
  };
  const char* otherwise = "cuts text otherwise than BERT does";
  EXPECT_EQ(with("/model/type", "WordPiece"), "");
  EXPECT_THAT(with("/normalizer/handle_chinese_chars", false), HasSubstr(otherwise));
  EXPECT_THAT(with("/normalizer/clean_text", false), HasSubstr(otherwise));
  EXPECT_THAT(with("/normalizer/type", "NFC"), HasSubstr(otherwise));
  EXPECT_THAT(with("/pre_tokenizer/type", "WhitespaceSplit"), HasSubstr(otherwise));
  EXPECT_THAT(with("/model/continuing_subword_prefix", "@@"), HasSubstr(otherwise));
  EXPECT_THAT(with("/model/max_input_chars_per_word", 5), HasSubstr(otherwise));
  EXPECT_THAT(with("/model/max_input_chars_per_word", 200), HasSubstr(otherwise));
  EXPECT_THAT(
      with("/added_tokens", Json::array({{{"id", 5}, {"content", "un"}, {"special", false}}})),
      HasSubstr(otherwise));
  EXPECT_THAT(with("/post_processor", nullptr),
              HasSubstr("0 special tokens surround a text; GGUF"));
  // what continues a word must not look like what begins one
  with("/model/vocab/##▁un", 13);
  EXPECT_THAT(error(14), HasSubstr("as another one is"));
}

TEST_F(WordPieceGguf, BecomesTokenizerJson) {
  folder_.write("vocab.txt", kVocab);
  entries();
  const test::TemporaryFolder again;
  EXPECT_EQ(copy_tokenizer_to_hf(folder_ / "written.gguf", again.path()), "");
  const text::Tokenizer written = find_tokenizer(again.path()),
                        original = find_tokenizer(folder_.path());
  for (const bool special : {false, true})
    for (const bool parse : {false, true})
      EXPECT_EQ(written.encode(kText, {special, parse}), original.encode(kText, {special, parse}));
  EXPECT_EQ(written.surround(Ids{5}, Ids{9}).ids, original.surround(Ids{5}, Ids{9}).ids);
  EXPECT_EQ(written.decode(written.encode(kText)), original.decode(original.encode(kText)));
}

// models of sentencepiece that GGUF files have a kind for; tools/golden/sentence_piece.py
TEST(SentencePieceGguf, CutsAsTheModelDoes) {
  const Json golden =
      spec::read_json_file(TESSERA_SOURCE_DIR "/tests/golden/text/sentence_piece.json");
  const auto entries = [&](const test::TemporaryFolder& folder, const char* name, int64_t vocab) {
    folder.write("tokenizer.model",
                 bytes_of_base64(golden["cases"][name]["model"].get<std::string>()).value());
    folder.write("tokenizer_config.json", R"({"chat_template": "x", "additional_special_tokens":
                                              ["<|im_end|>"], "eos_token": "<|im_end|>"})");
    const auto all = gguf_tokenizer_entries(folder.path(), vocab);
    format::write_gguf(folder / "written.gguf", all, {});
  };
  for (const auto& [name, pieces] :
       {std::pair{"bpe_bytes", 520}, {"unigram", 300}, {"unigram_t5", 300}}) {
    SCOPED_TRACE(name);
    const test::TemporaryFolder folder;
    entries(folder, name, pieces + 5);
    const text::Tokenizer original = find_tokenizer(folder.path()),
                          written = find_tokenizer(folder / "written.gguf");
    EXPECT_EQ(written.eos(), pieces);
    EXPECT_EQ(written.chat_template(), "x");
    EXPECT_EQ(written.surround(Ids{-1}), original.surround(Ids{-1}));
    // a Unigram model of a GGUF file keeps U+2581 of a text where SentencePiece removes spaces
    const bool spaces = std::string_view(name) != "bpe_bytes";
    for (const Json& each : golden["texts"]) {
      const std::string text = each;
      if (spaces && text.find("\xE2\x96\x81") != std::string::npos) continue;
      EXPECT_EQ(written.encode(text), original.encode(text)) << text;
    }
  }
  // llama.cpp has no BPE with scores behind a map of characters
  const test::TemporaryFolder folder;
  EXPECT_THAT(test::error_of([&] { entries(folder, "bpe", 300); }), HasSubstr("normalizes text"));
  EXPECT_THAT(test::error_of([&] { entries(folder, "unigram", 299); }),
              HasSubstr("the model has 299"));
}

}  // namespace
}  // namespace tessera::convert::gguf_tokenizer_test
