// Models of sentencepiece: the ids and texts of the library itself, and broken files.
#include "tessera/text/tokenizer_files/sentence_piece.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/base64.h"
#include "tessera/base/testing.h"
#include "tessera/spec/json.h"
#include "tessera/text/tokenizer/raw_prompt.h"

namespace tessera::text::sentence_piece_test {
namespace {

using spec::Json;
using test::error_of;
using testing::HasSubstr;
using Ids = std::vector<int32_t>;

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

class SentencePiece : public testing::Test {
 protected:
  std::string model(const char* name) const {
    return bytes_of_base64(golden_["cases"][name]["model"].get<std::string>()).value();
  }
  Tokenizer read(const char* name, const TokenizerCompanions& companions = {}) const {
    const std::string file = model(name);
    return tokenizer_from_sentence_piece(bytes_of(file), name, companions);
  }
  const Json golden_ =
      spec::read_json_file(TESSERA_SOURCE_DIR "/tests/golden/text/sentence_piece.json");
};

// tools/golden/sentence_piece.py
TEST_F(SentencePiece, IdsAreThoseOfTheLibrary) {
  for (const auto& [name, want] : golden_["cases"].items()) {
    SCOPED_TRACE(name);
    const Tokenizer tokenizer = read(name.c_str());
    for (size_t i = 0; i < golden_["texts"].size(); ++i) {
      const auto text = golden_["texts"][i].get<std::string>();
      const Ids ids = want["ids"][i].get<Ids>();
      // a text that begins with a user's own piece has no space before it, as in transformers
      if (name == "bpe_own" && text.starts_with("<sep>")) continue;
      EXPECT_EQ(tokenizer.encode(text, {.add_special = false}), ids) << golden_["texts"][i];
    }
    const auto role = [&](const char* key) {
      const auto id = want[key].get<int32_t>();
      return id < 0 ? std::nullopt : std::optional(id);
    };
    EXPECT_EQ(tokenizer.bos(), role("bos"));
    EXPECT_EQ(tokenizer.eos(), role("eos"));
    EXPECT_EQ(tokenizer.unk(), role("unk"));
    EXPECT_EQ(tokenizer.pad(), role("pad"));
  }
}

// an unknown piece is " ⁇ " for the library, and its own text here
TEST_F(SentencePiece, TextsAreThoseOfTheLibrary) {
  for (const auto& [name, want] : golden_["cases"].items()) {
    SCOPED_TRACE(name);
    const Tokenizer tokenizer = read(name.c_str());
    for (size_t i = 0; i < golden_["texts"].size(); ++i) {
      const Ids ids = want["ids"][i].get<Ids>();
      if (std::find(ids.begin(), ids.end(), *tokenizer.unk()) != ids.end()) continue;
      EXPECT_EQ(tokenizer.decode(ids), want["decoded"][i].get<std::string>())
          << golden_["texts"][i];
    }
  }
}

TEST_F(SentencePiece, ClassesPutTokensAroundATextAsTransformersDoes) {
  const auto around = [&](const char* name, const char* config) {
    return read(name, {.config = config}).surround(Ids{-1});
  };
  // without a class: what the model has tells Llama's and T5's
  EXPECT_EQ(around("bpe_bytes", ""), (Ids{1, -1}));
  EXPECT_EQ(around("bpe", ""), (Ids{-1}));
  EXPECT_EQ(around("unigram", ""), (Ids{-1}));
  EXPECT_EQ(around("unigram_t5", ""), (Ids{-1, 1}));
  EXPECT_EQ(around("bpe", R"({"tokenizer_class": "LlamaTokenizer"})"), (Ids{1, -1}));
  EXPECT_EQ(around("bpe_no_prefix", R"({"tokenizer_class": "GemmaTokenizerFast"})"), (Ids{2, -1}));
  EXPECT_EQ(around("bpe", R"({"tokenizer_class": "LlamaTokenizer", "add_bos_token": false,
                              "add_eos_token": true})"),
            (Ids{-1, 2}));
  EXPECT_EQ(around("unigram_t5", R"({"tokenizer_class": "T5Tokenizer"})"), (Ids{-1, 1}));
  EXPECT_EQ(around("unigram_t5", R"({"tokenizer_class": "BertGenerationTokenizer"})"), (Ids{-1}));
  EXPECT_THAT(error_of([&] { around("unigram", R"({"tokenizer_class": "XLMRobertaTokenizer"})"); }),
              HasSubstr("tokenizer_class = \"XLMRobertaTokenizer\" is not supported"));
  EXPECT_THAT(error_of([&] {
                around("unigram_t5",
                       R"({"tokenizer_class": "T5Tokenizer", "add_bos_token": true})");
              }),
              HasSubstr("add_bos_token is true, and no file names such a token"));
}

TEST_F(SentencePiece, SentinelsOfT5StandBehindItsPieces) {
  const Tokenizer t5 = read("unigram_t5", {.config = R"({"tokenizer_class": "T5Tokenizer"})"});
  EXPECT_EQ(t5.vocab_size(), 400);
  EXPECT_EQ(t5.id("<extra_id_0>"), 399);
  EXPECT_EQ(t5.id("<extra_id_99>"), 300);
  // each text between them is one of its own
  const Ids the = t5.encode("the", {.add_special = false});
  Ids want = the;
  want.push_back(399);
  want.insert(want.end(), the.begin(), the.end());
  EXPECT_EQ(t5.encode("the <extra_id_0> the", {.add_special = false, .parse_special = true}), want);
}

TEST_F(SentencePiece, FilesNextToItNameFurtherTokens) {
  const Tokenizer llama = read("bpe_bytes", {.config = R"({"tokenizer_class": "LlamaTokenizer",
      "added_tokens_decoder": {"520": {"content": "<|im_start|>", "special": true},
                               "521": {"content": "<|im_end|>", "special": true}},
      "eos_token": "<|im_end|>", "chat_template": "x"})"});
  EXPECT_EQ(llama.eos(), 521);
  EXPECT_EQ(llama.vocab_size(), 522);
  EXPECT_EQ(llama.chat_template(), "x");
  EXPECT_EQ(llama.encode("<|im_start|>", {.add_special = true, .parse_special = true}),
            (Ids{1, 520}));
}

TEST_F(SentencePiece, FoldersAndFilesAreToldByTheirContent) {
  const test::TemporaryFolder folder;
  const std::string file = folder.write("tokenizer.model", model("unigram"));
  const Ids want = read("unigram").encode("to be", {});
  EXPECT_EQ(load_tokenizer(folder.path()).encode("to be", {}), want);
  EXPECT_EQ(load_tokenizer(file).encode("to be", {}), want);
  std::filesystem::rename(file, folder / "spiece.model");
  EXPECT_EQ(load_tokenizer(folder.path()).encode("to be", {}), want);
  for (const auto& [name, entry] : golden_["cases"].items())
    EXPECT_STREQ(tokenizer_file_name(model(name.c_str())), "tokenizer.model") << name;
  EXPECT_FALSE(is_sentence_piece("[PAD]\n[UNK]\n"));
  EXPECT_FALSE(is_sentence_piece("\n"));
  EXPECT_FALSE(is_sentence_piece(std::string("\x0a\0\0\0", 4)));
}

TEST_F(SentencePiece, RefusesWhatIsBroken) {
  const std::string whole = model("bpe");
  const auto refused = [](const std::string& file) {
    return error_of([&] { read_sentence_piece(bytes_of(file), "m"); });
  };
  EXPECT_EQ(refused(whole), "");
  EXPECT_THAT(refused(whole.substr(0, whole.size() - 1)), HasSubstr("ends within a field"));
  EXPECT_THAT(refused(""), HasSubstr("no pieces"));
  EXPECT_THAT(refused(std::string(20, '\xFF')), HasSubstr("more than 64 bits"));
  EXPECT_THAT(refused(std::string("\0\0", 2)), HasSubstr("field number 0"));
  EXPECT_THAT(refused("\x0B"), HasSubstr("unknown wire type"));
  EXPECT_THAT(refused(std::string("\x08\x01", 2)), HasSubstr("a field of another type"));
  const auto piece = [](const std::string& text, char type) {
    const std::string inner = "\x0A" + std::string(1, static_cast<char>(text.size())) + text +
                              "\x18" + std::string(1, type);
    return "\x0A" + std::string(1, static_cast<char>(inner.size())) + inner;
  };
  EXPECT_THAT(refused(piece("a", 1)), HasSubstr("no unknown piece"));
  EXPECT_THAT(refused(piece("a", 2) + piece("b", 2)), HasSubstr("two unknown pieces"));
  EXPECT_THAT(refused(piece("a", 9)), HasSubstr("piece 0 has type 9"));
  EXPECT_THAT(refused(piece("\xFF", 1)), HasSubstr("piece 0 is not UTF-8"));
  EXPECT_THAT(refused(piece("", 1)), HasSubstr("piece 0 is empty"));
  const std::string unk = piece("<unk>", 2);
  EXPECT_EQ(refused(unk), "");
  EXPECT_THAT(refused(unk + "\x12\x02\x18\x04"), HasSubstr("model_type 4"));
  EXPECT_THAT(refused(unk + "\x12\x03\xC0\x01\x01"), HasSubstr("treat_whitespace_as_suffix"));
  EXPECT_THAT(refused(unk + std::string("\x1A\x02\x28\x00", 4)), HasSubstr("escape_whitespaces"));
  const std::string twice = unk + piece("a", 1) + piece("a", 1);
  EXPECT_NE(error_of([&] { tokenizer_from_sentence_piece(bytes_of(twice), "m"); }), "");
}

/// Models of two sides (tools/golden/mapped_pieces.py).
class TwoSides : public testing::Test {
 protected:
  std::string model(const char* side) const {
    return bytes_of_base64(golden_[side].get<std::string>()).value();
  }
  /// The files of a case as a folder of a model has them.
  void write(const test::TemporaryFolder& folder, const Json& of_case) const {
    folder.write("source.spm", model("source"));
    folder.write("target.spm", model("target"));
    folder.write("vocab.json", of_case["vocab"][0].dump());
    if (of_case["vocab"].size() > 1) folder.write("target_vocab.json", of_case["vocab"][1].dump());
    folder.write("tokenizer_config.json", Json{{"tokenizer_class", "MarianTokenizer"},
                                               {"separate_vocabs", of_case["vocab"].size() > 1}}
                                              .dump());
  }
  const Json golden_ =
      spec::read_json_file(TESSERA_SOURCE_DIR "/tests/golden/text/mapped_pieces.json");
};

TEST_F(TwoSides, IdsAndTextsAreThoseOfTransformers) {
  for (const auto& [name, want] : golden_["cases"].items()) {
    SCOPED_TRACE(name);
    const test::TemporaryFolder folder;
    write(folder, want);
    const Tokenizer tokenizer = load_tokenizer(folder.path());
    const EncodeOptions options{.add_special = true, .parse_special = true};
    for (size_t i = 0; i < golden_["texts"].size(); ++i) {
      SCOPED_TRACE(golden_["texts"][i].dump());
      const auto text = golden_["texts"][i].get<std::string>();
      EXPECT_EQ(tokenizer.of_source().encode(text, options), want["ids"][i].get<Ids>());
      const Ids ids = want["target_ids"][i].get<Ids>();
      EXPECT_EQ(tokenizer.encode(text, options), ids);
      EXPECT_EQ(tokenizer.decode(ids), want["decoded"][i].get<std::string>());
      // a raw prompt is a source
      EXPECT_EQ(encode_raw_prompt(tokenizer, text).ids, want["ids"][i].get<Ids>());
    }
    EXPECT_EQ(tokenizer_files_in(folder.path()).size(), want["vocab"].size() + 3);
  }
}

TEST_F(TwoSides, RefusesFilesThatLackAPart) {
  const Json& apart = golden_["cases"]["apart"];
  const test::TemporaryFolder folder;
  write(folder, apart);
  const auto error = [&] { return error_of([&] { load_tokenizer(folder.path()); }); };
  EXPECT_EQ(error(), "");
  std::filesystem::remove(folder / "target_vocab.json");
  EXPECT_THAT(error(), HasSubstr("expected target_vocab.json"));
  Json vocab = apart["vocab"][1];
  vocab.erase("</s>");
  folder.write("target_vocab.json", vocab.dump());
  EXPECT_THAT(error(), HasSubstr("target_vocab.json] the vocabulary lacks \"</s>\""));
  write(folder, apart);
  folder.write("vocab.json", "{");
  EXPECT_THAT(error(), HasSubstr("/vocab.json]"));
  write(folder, apart);
  folder.write("target.spm", "?");
  EXPECT_THAT(error(), HasSubstr("target.spm]"));
  folder.write("tokenizer_config.json", R"({"tokenizer_class": "XLMRobertaTokenizer"})");
  EXPECT_THAT(error(), HasSubstr("expected Marian"));
  std::filesystem::remove(folder / "target.spm");
  EXPECT_EQ(tokenizer_file_in(folder.path()), std::nullopt);
}

}  // namespace
}  // namespace tessera::text::sentence_piece_test
