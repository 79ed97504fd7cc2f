// vocab.json and merges.txt: the ids of transformers' classes, and broken files.
#include "tessera/text/tokenizer_files/vocab_merges.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/testing.h"
#include "tessera/spec/json.h"

namespace tessera::text::vocab_merges_test {
namespace {

using spec::Json;
using test::error_of;
using testing::HasSubstr;
using Ids = std::vector<int32_t>;

// tools/golden/vocab_merges.py
TEST(VocabMerges, IdsAreThoseOfTransformers) {
  const Json golden =
      spec::read_json_file(TESSERA_SOURCE_DIR "/tests/golden/text/vocab_merges.json");
  for (const auto& [name, want] : golden["cases"].items()) {
    SCOPED_TRACE(name);
    const test::TemporaryFolder folder;
    for (const auto& [file, content] : golden["files"][want["files"].get<std::string>()].items())
      folder.write(file, content.get<std::string>());
    folder.write("tokenizer_config.json", want["config"].dump());
    const Tokenizer tokenizer = load_tokenizer(folder.path());
    for (size_t i = 0; i < golden["texts"].size(); ++i) {
      const auto text = golden["texts"][i].get<std::string>();
      EXPECT_EQ(tokenizer.encode(text, {.add_special = false, .parse_special = true}),
                want["plain"][i].get<Ids>())
          << text;
      EXPECT_EQ(tokenizer.encode(text, {.add_special = true, .parse_special = true}),
                want["wrapped"][i].get<Ids>())
          << text;
    }
    const auto role = [&](const char* key) {
      const Json id = want["roles"][key];
      return id.is_null() ? std::nullopt : std::optional(id.get<int32_t>());
    };
    EXPECT_EQ(tokenizer.bos(), role("bos"));
    EXPECT_EQ(tokenizer.eos(), role("eos"));
    EXPECT_EQ(tokenizer.unk(), role("unk"));
    EXPECT_EQ(tokenizer.pad(), role("pad"));
    EXPECT_EQ(tokenizer_files_in(folder.path()).size(), 3u);
  }
}

TEST(VocabMerges, RefusesWhatIsBroken) {
  const char* vocab = R"({"<|endoftext|>": 0, "a": 1, "b": 2, "ab": 3})";
  const auto refused = [](const char* vocab, const char* merges, const char* config = "") {
    return error_of(
        [&] { tokenizer_from_merges(vocab, merges, "vocab.json", {.config = config}); });
  };
  EXPECT_EQ(refused(vocab, "#version: 0.2\na b\n"), "");
  EXPECT_EQ(refused(vocab, "a b\r\n\r\n"), "");
  EXPECT_THAT(refused(vocab, "#version: 0.2\nab\n"),
              HasSubstr("merges.txt] line 2 is \"ab\"; expected two tokens"));
  EXPECT_THAT(refused(vocab, "a b b\n"), HasSubstr("line 1"));
  EXPECT_THAT(refused(vocab, " a\n"), HasSubstr("line 1"));
  EXPECT_THAT(refused(vocab, "a c\n"), HasSubstr("c"));
  EXPECT_THAT(refused(vocab, "a \xFF\n"), HasSubstr("not UTF-8"));
  EXPECT_THAT(refused("[1]", "a b\n"), HasSubstr("expected an object of tokens and ids"));
  EXPECT_THAT(refused(R"({"a": "x"})", ""), HasSubstr("the id of token \"a\""));
  EXPECT_THAT(refused("{", ""), HasSubstr("vocab.json"));
  EXPECT_THAT(refused(vocab, "a b\n", R"({"tokenizer_class": "CLIPTokenizer"})"),
              HasSubstr("\"CLIPTokenizer\" is not supported with vocab.json and merges.txt"));
  // a classifier's tokens must be there
  EXPECT_THAT(refused(R"({"a": 0, "b": 1})", "", R"({"tokenizer_class": "RobertaTokenizer",
                                                     "sep_token": null})"),
              HasSubstr("no token is the sep_token"));
}

}  // namespace
}  // namespace tessera::text::vocab_merges_test
