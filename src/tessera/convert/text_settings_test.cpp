// What stands beside an adapter's weights, and where it goes.
#include "tessera/convert/text_settings.h"

#include <gmock/gmock.h>

#include "tessera/base/mapped_file.h"
#include "tessera/base/testing.h"
#include "tessera/convert/tokenizer.h"
#include "tessera/spec/json.h"

namespace tessera::convert::text_settings_test {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

const fs::path kFamilies = fs::path(TESSERA_SOURCE_DIR) / "tests/golden/families";
constexpr const char* kClsModules = R"([{"type": "x.Transformer", "path": ""},
    {"type": "x.Pooling", "path": "1_Pooling"}, {"type": "x.Normalize", "path": "2_Normalize"}])";

/// An adapter that was trained with a template, an end and a pooling of its own.
class OfAnAdapter : public testing::Test {
 protected:
  void SetUp() override {
    adapter_.write("chat_template.jinja", "TURNS");
    adapter_.write("generation_config.json", R"({"eos_token_id": [2, 900], "top_k": 3})");
    pools("cls");
  }
  void pools(const std::string& mode) {
    adapter_.write("modules.json", kClsModules);
    adapter_.write("1_Pooling/config.json", R"({"pooling_mode": ")" + mode + "\"}");
  }
  test::TemporaryFolder adapter_;
};

TEST_F(OfAnAdapter, AreRead) {
  const TextSettings settings = settings_of_adapter(adapter_.path(), 64);
  EXPECT_EQ(settings.chat_template, "TURNS");
  EXPECT_THAT(settings.ends, ElementsAre(2));
  EXPECT_TRUE(settings.sentences.stated);
  EXPECT_THAT(settings.sentences.poolings, ElementsAre(Pooling::cls));
  const test::TemporaryFolder bare;
  const TextSettings none = settings_of_adapter(bare.path(), 64);
  EXPECT_EQ(none.chat_template, "");
  EXPECT_TRUE(none.ends.empty());
  EXPECT_FALSE(none.sentences.stated);
}

TEST_F(OfAnAdapter, ReplaceThePoolingOfTheModelAndNoMore) {
  const test::TemporaryFolder model, other;
  EXPECT_FALSE(sentence_modules_of(model.path(), {}).stated);
  model.write("modules.json", kClsModules);
  model.write("1_Pooling/config.json", R"({"pooling_mode": "mean"})");
  model.write("sentence_bert_config.json", R"({"max_seq_length": 77, "do_lower_case": true})");
  const std::vector<std::string> adapters = {adapter_.path().string(), other.path().string()};
  EXPECT_THAT(sentence_modules_of(model.path(), {}).poolings, ElementsAre(Pooling::mean));
  const SentenceModules both = sentence_modules_of(model.path(), adapters);
  EXPECT_THAT(both.poolings, ElementsAre(Pooling::cls));
  EXPECT_EQ(both.max_tokens, 77);
  EXPECT_TRUE(both.lower_case);
}

TEST_F(OfAnAdapter, GoIntoTheFolderOfAMergedModel) {
  const test::TemporaryFolder merged;
  merged.write("generation_config.json", R"({"eos_token_id": 1, "top_k": 5})");
  write_settings_of_adapter(adapter_.path(), 64, merged.path());
  EXPECT_EQ(read_text_file(merged / "chat_template.jinja"), "TURNS");
  const Json generation = spec::read_json_file(merged / "generation_config.json");
  EXPECT_EQ(generation["eos_token_id"], Json({1, 2}));
  EXPECT_EQ(generation["top_k"], 5);
  EXPECT_THAT(sentence_modules_of(merged.path()).poolings, ElementsAre(Pooling::cls));
}

TEST_F(OfAnAdapter, GoIntoAGgufFile) {
  GgufModel model = read_gguf_model(kFamilies / "llama/gguf/base.gguf");
  const int64_t eos = model.integer_or("tokenizer.ggml.eos_token_id", -1);
  adapter_.write("generation_config.json", R"({"eos_token_id": [)" + std::to_string(eos) + ", 5]}");
  set_settings_of_adapter(adapter_.path(), 64, model);
  ASSERT_NE(model.find("tokenizer.chat_template"), nullptr);
  EXPECT_EQ(model.find("tokenizer.chat_template")->as_string(), "TURNS");
  EXPECT_EQ(model.integer_or("tokenizer.ggml.eos_token_id", -1), eos);
  EXPECT_EQ(model.integer_or("tokenizer.ggml.eot_token_id", -1), 5);
  EXPECT_EQ(model.integer_or(".pooling_type", -1), 2);
  pools("max");
  EXPECT_THAT(test::error_of([&] { set_settings_of_adapter(adapter_.path(), 64, model); }),
              HasSubstr("the adapter pools by max; GGUF files support mean, cls or last"));
}

TEST_F(OfAnAdapter, ATokenizerTakesTheTemplate) {
  const text::Tokenizer tokenizer = find_tokenizer(kFamilies / "llama/gguf/base.gguf"),
                        other = with_template_in(adapter_.path(), tokenizer);
  EXPECT_EQ(other.chat_template(), "TURNS");
  EXPECT_EQ(other.tool_template(), "TURNS");
  EXPECT_EQ(other.encode("AB C"), tokenizer.encode("AB C"));
  const test::TemporaryFolder bare;
  EXPECT_EQ(with_template_in(bare.path(), other).chat_template(), "TURNS");
  // also where a folder keeps its tokenizer as a GGUF file's metadata
  copy_tokenizer(kFamilies / "llama/gguf/base.gguf", adapter_.path());
  EXPECT_EQ(find_tokenizer(adapter_.path()).chat_template(), "TURNS");
}

}  // namespace
}  // namespace tessera::convert::text_settings_test
