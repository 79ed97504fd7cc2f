// Tokenizers of single characters that a configuration alone describes. Ids are those of
// tokenization_hyena.py of LongSafari/hyenadna-tiny-1k-seqlen-hf and of hg38_char_tokenizer.py of
// HazyResearch/hyena-dna: 0 to 6 special tokens, then the characters, [SEP] after a text.
#include "tessera/text/tokenizer_files/character_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "tessera/base/testing.h"

namespace tessera::text::character_tokenizer_test {
namespace {

using Ids = std::vector<int32_t>;

TEST(CharacterTokenizer, OfAClassThatIsKnown) {
  const test::TemporaryFolder folder;
  folder.write("tokenizer_config.json",
               R"({"auto_map": {"AutoTokenizer": ["tokenization_hyena.HyenaDNATokenizer", null]},
                   "bos_token": "[BOS]", "cls_token": "[CLS]", "eos_token": "[SEP]",
                   "mask_token": "[MASK]", "model_max_length": 1026, "pad_token": "[PAD]",
                   "sep_token": "[SEP]", "tokenizer_class": "HyenaDNATokenizer",
                   "unk_token": "[UNK]"})");
  const Tokenizer tokenizer = load_tokenizer(folder.path());
  EXPECT_EQ(tokenizer.vocab_size(), 12);
  EXPECT_EQ(tokenizer.encode("ACGTN", {.add_special = true}), (Ids{7, 8, 9, 10, 11, 1}));
  // small letters are capital ones; others are unknown, one by one
  EXPECT_EQ(tokenizer.encode("acgtnxX-é", {.add_special = false}),
            (Ids{7, 8, 9, 10, 11, 6, 6, 6, 6}));
  EXPECT_EQ(tokenizer.encode("A[MASK]T", {.add_special = false, .parse_special = true}),
            (Ids{7, 3, 10}));
  EXPECT_EQ(tokenizer.encode("[MASK]", {.add_special = false}), (Ids{6, 6, 7, 6, 6, 6}));
  EXPECT_EQ(tokenizer.decode(Ids{7, 8, 9, 10, 11}), "ACGTN");
  EXPECT_EQ(tokenizer.bos(), 2);
  EXPECT_EQ(tokenizer.eos(), 1);
  EXPECT_EQ(tokenizer.pad(), 4);
  EXPECT_EQ(tokenizer.unk(), 6);
  EXPECT_EQ(tokenizer_files_in(folder.path()).size(), 1U);
}

TEST(CharacterTokenizer, OfCharactersThatTheConfigurationLists) {
  const test::TemporaryFolder folder;
  folder.write("tokenizer_config.json",
               R"({"char_ords": [65, 67, 71, 84, 78, 955], "model_max_length": 1026})");
  const Tokenizer tokenizer = load_tokenizer(folder.path());
  EXPECT_EQ(tokenizer.encode("ACGTNa\u03bb", {.add_special = true}),
            (Ids{7, 8, 9, 10, 11, 6, 12, 1}));
  EXPECT_EQ(tokenizer.decode(Ids{7, 12, 8}), "A\u03bbC");
  EXPECT_EQ(tokenizer.eos(), 1);
}

// whether a folder has a tokenizer cannot be told from a damaged file
TEST(CharacterTokenizer, ADamagedConfigurationIsAnError) {
  for (const char* config : {"", "\n", "char_ords", R"({"tokenizer_class": "Hyena)", "[1]"}) {
    const test::TemporaryFolder folder;
    folder.write("tokenizer_config.json", config);
    for (const auto& ask : std::vector<std::function<void()>>{
             [&] { tokenizer_file_in(folder.path()); }, [&] { load_tokenizer(folder.path()); }})
      test::expect_error(ErrorKind::file, "[" + (folder / "tokenizer_config.json").string() + "] ",
                         ask);
  }
}

TEST(CharacterTokenizer, OthersAreNone) {
  EXPECT_FALSE(is_character_config(R"({"tokenizer_class": "BertTokenizer"})", "config"));
  EXPECT_FALSE(is_character_config(R"({"char_ords": 3})", "config"));
  const test::TemporaryFolder folder;
  folder.write("tokenizer_config.json", R"({"tokenizer_class": "BertTokenizer"})");
  EXPECT_FALSE(tokenizer_file_in(folder.path()));
  const auto refused = [](const char* config) {
    return test::error_of([&] { tokenizer_from_characters(config, "config"); });
  };
  EXPECT_THAT(refused(R"({"char_ords": [65, 67, 65]})"), testing::HasSubstr("\"A\" twice"));
  EXPECT_THAT(refused(R"({"char_ords": [65, -1]})"), testing::HasSubstr("has -1; expected"));
}

}  // namespace
}  // namespace tessera::text::character_tokenizer_test
