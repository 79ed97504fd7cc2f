// Real tokenizers against recorded ids of the `tokenizers` library. The tokenizer files and corpora
// are outside data: TESSERA_TEST_DATA names their folder.
#include <cstdlib>
#include <iostream>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tessera/base/mapped_file.h"
#include "tessera/base/rng.h"
#include "tessera/spec/json.h"
#include "tessera/text/tokenizer/tokenizer.h"

namespace tessera::text::tokenizer_golden_test {
namespace {

using spec::Json;
namespace fs = std::filesystem;

class RecordedTokenizer : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const char* data = std::getenv("TESSERA_TEST_DATA");
    if (data == nullptr) GTEST_SKIP() << "TESSERA_TEST_DATA is not set";
    data_ = data;
    folder_ = data_ / "tokenizers" / GetParam();
    if (std::string_view(GetParam()) == "all-minilm-l6-v2") {  // scripts/setup.sh minilm
      const char* cache = std::getenv("TESSERA_CACHE");
      const char* home = std::getenv("HOME");
      folder_ = (cache != nullptr ? fs::path(cache)
                                  : fs::path(home == nullptr ? "." : home) / ".cache/tessera") /
                GetParam();
      if (!fs::exists(folder_)) GTEST_SKIP() << folder_ << " is missing";
    }
  }
  Tokenizer tokenizer() const { return load_tokenizer(folder_); }
  static Json golden() {
    return spec::read_json_file(fs::path(TESSERA_SOURCE_DIR) / "tests/golden/text" /
                                (std::string(GetParam()) + ".json"));
  }
  fs::path data_;
  fs::path folder_;
};

TEST_P(RecordedTokenizer, IdsAndTextsOfRandomStrings) {
  const Tokenizer t = tokenizer();
  const Json expected = golden();
  EXPECT_EQ(t.vocab_size(), expected["vocab_size"].get<int32_t>());
  for (const Json& row : expected["rows"]) {
    const auto text = row["text"].get<std::string>();
    const Json& parsed = row.contains("parsed") ? row["parsed"] : row["plain"];
    const auto& decoded = row.contains("decoded") ? row["decoded"] : row["text"];
    EXPECT_EQ(Json(t.encode(text, {false, true})), parsed) << row["text"];
    EXPECT_EQ(Json(t.encode(text, {false, false})), row["plain"]) << row["text"];
    EXPECT_EQ(Json(t.encode(text, {true, true})), row["wrapped"]) << row["text"];
    EXPECT_EQ(t.decode(row["plain"].get<std::vector<int32_t>>(), false),
              decoded.get<std::string>());
  }
}

TEST_P(RecordedTokenizer, IdsOfWholeCorpora) {
  const Tokenizer t = tokenizer();
  for (const Json& corpus : golden()["corpora"]) {
    const auto name = corpus["file"].get<std::string>();
    const std::string text = read_text_file(data_ / "text" / name);
    const std::vector<int32_t> ids = t.encode(text, {false, false});
    ASSERT_EQ(ids.size(), corpus["ids"].get<size_t>()) << name;
    const std::string_view bytes(reinterpret_cast<const char*>(ids.data()),
                                 ids.size() * sizeof(int32_t));
    EXPECT_EQ(fmt::format("{:016x}", hash_name(bytes)), corpus["fnv1a"].get<std::string>()) << name;
    if (corpus.contains("decoded_fnv1a")) {
      EXPECT_EQ(fmt::format("{:016x}", hash_name(t.decode(ids))),
                corpus["decoded_fnv1a"].get<std::string>())
          << name;
    } else {
      EXPECT_EQ(t.decode(ids), text) << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    ,
    RecordedTokenizer,
    testing::Values("llama2", "phi-2", "roberta-base", "t5-small", "all-minilm-l6-v2"),
    [](const auto& info) {
      std::string name = info.param;
      std::erase(name, '-');
      return name;
    });

}  // namespace
}  // namespace tessera::text::tokenizer_golden_test
