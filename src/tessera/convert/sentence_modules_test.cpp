// How models of sentences pool, in folders and in GGUF files; what folders say otherwise stands in
// infer/encoders/embed_test.cpp.
#include "tessera/convert/sentence_modules.h"

#include <gmock/gmock.h>

#include "tessera/base/testing.h"
#include "tessera/convert/gguf_model.h"

namespace tessera::convert::sentence_modules_test {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

const fs::path kBody = fs::path(TESSERA_SOURCE_DIR) / "tests/golden/families/bert/body";
const fs::path kFile = fs::path(TESSERA_SOURCE_DIR) / "tests/golden/families/bert/gguf/body.gguf";

class SentenceGguf : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"config.json", "model.safetensors"})
      fs::copy_file(kBody / name, folder_ / name);
  }
  void says(const char* pooling, bool normalize = true) {
    folder_.write("modules.json",
                  std::string(R"([{"type": "x.Transformer", "path": ""},
                                  {"type": "x.Pooling", "path": "1_Pooling"})") +
                      (normalize ? R"(, {"type": "x.Normalize", "path": "2_Normalize"}])" : "]"));
    folder_.write("1_Pooling/config.json", pooling);
  }
  GgufModel written() {
    GgufModelOptions options;
    options.tokenizer = kFile;
    GgufModel model = gguf_model_of(load_checkpoint(folder_.path()), options);
    write_gguf_model(model, folder_ / "written.gguf");
    return model;
  }
  SentenceModules read() { return sentence_modules_of(folder_ / "written.gguf"); }

  test::TemporaryFolder folder_;
};

TEST_F(SentenceGguf, FilesSayThePooling) {
  EXPECT_EQ(written().find(".pooling_type"), nullptr);
  EXPECT_FALSE(read().stated);
  EXPECT_TRUE(read().normalize);
  for (const auto& [json, pooling, number] :
       {std::tuple{R"({"pooling_mode_mean_tokens": true})", Pooling::mean, 1},
        std::tuple{R"({"pooling_mode_cls_token": true})", Pooling::cls, 2},
        std::tuple{R"({"pooling_mode_lasttoken": true})", Pooling::last, 3}}) {
    says(json);
    const GgufModel model = written();
    EXPECT_EQ(model.integer_or(".pooling_type", -1), number);
    EXPECT_TRUE(model.remarks.empty());
    EXPECT_TRUE(read().stated);
    EXPECT_EQ(read().poolings, std::vector{pooling});
    // a file that is made of the file says it too
    write_gguf_model(gguf_model_of(load_checkpoint(folder_ / "written.gguf")),
                     folder_ / "again.gguf");
    EXPECT_EQ(sentence_modules_of(folder_ / "again.gguf").poolings, std::vector{pooling});
  }
  says(R"({"pooling_mode_max_tokens": true})");
  EXPECT_THAT(test::error_of([&] { written(); }),
              HasSubstr("has pooling max; GGUF files support mean, cls or last"));
}

TEST_F(SentenceGguf, WhatFilesDoNotSayIsRemarked) {
  says(R"({"pooling_mode_mean_tokens": true, "include_prompt": false})", false);
  folder_.write("sentence_bert_config.json", R"({"max_seq_length": 32})");  // as many as positions
  folder_.write("config_sentence_transformers.json",
                R"({"prompts": {"query": "q: "}, "default_prompt_name": "query"})");
  EXPECT_THAT(written().remarks, ElementsAre("GGUF files lack settings of the folder; use tessera "
                                             "embed with --no-normalize --prompt \"q: \"",
                                             HasSubstr("include_prompt = false")));
  folder_.write("sentence_bert_config.json", R"({"max_seq_length": 31})");
  EXPECT_THAT(written().remarks.at(0), HasSubstr("embed with --max-tokens 31 --no-normalize"));
}

TEST_F(SentenceGguf, OtherNumbers) {
  GgufModel model = read_gguf_model(kFile);
  const auto pooling = [&](uint32_t number) {
    model.set("bert.pooling_type", format::GgufValue::number(number));
    write_gguf_model(model, folder_ / "written.gguf");
    return test::error_of([&] { EXPECT_FALSE(read().stated); });
  };
  EXPECT_EQ(pooling(0), "");
  EXPECT_EQ(pooling(4), "");
  EXPECT_THAT(pooling(5), HasSubstr("bert.pooling_type = 5; expected 0 (none), 1 (mean), 2"));
}

}  // namespace
}  // namespace tessera::convert::sentence_modules_test
