// Real checkpoints, read where they lie: SmolLM2-135M-Instruct as GGUF (TESSERA_SMOLLM2 names the
// file), stories260K and an RWKV-4 (in TESSERA_TEST_DATA), all-MiniLM-L6-v2 (in TESSERA_CACHE,
// where scripts/setup.sh minilm puts it). Skipped where they are absent.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "tessera/base/resident.h"
#include "tessera/base/mapped_file.h"
#include "tessera/base/testing.h"
#include "tessera/base/threads.h"
#include "tessera/convert/gguf_model.h"
#include "tessera/convert/tokenizer.h"
#include "tessera/infer/encoders/embed.h"
#include "tessera/infer/evaluation/evaluate.h"
#include "tessera/infer/engine/generate.h"
#include "tessera/infer/loading/quantize_on_load.h"
#include "tessera/model/padding.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

class SmolLm2 : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = variable("TESSERA_SMOLLM2");
    if (path_.empty() || !fs::exists(path_))
      GTEST_SKIP() << "TESSERA_SMOLLM2 does not name the GGUF file";
    golden_ = spec::read_json_file(std::string(TESSERA_SOURCE_DIR) + "/tests/golden/smollm2.json");
  }
  std::string path_;
  spec::Json golden_;
};

TEST_F(SmolLm2, LossOfOneWindowAsTransformers) {
  const std::string data = variable("TESSERA_TEST_DATA");
  if (data.empty()) GTEST_SKIP() << "TESSERA_TEST_DATA is not set";
  const infer::LoadedModel loaded = infer::load_model(path_);
  const auto ids = loaded.tokenizer->encode(
      read_text_file(data + "/text/wikitext2.test.txt").substr(0, 20'000), {.add_special = false});
  ASSERT_GE(ids.size(), 2000u);
  const std::vector<int64_t> first(ids.begin(), ids.begin() + 2000);
  for (size_t i = 0; i < golden_["first_ids"].size(); ++i)
    EXPECT_EQ(first[i], golden_["first_ids"][i].get<int64_t>());
  const infer::EvalResult result = infer::evaluate(loaded.model, first, {.window = 2000});
  EXPECT_EQ(result.targets, 1999);
  const double expected = golden_["nll"].get<double>();
  EXPECT_LT(std::abs(result.nll - expected), 1e-4 * expected);
}

TEST_F(SmolLm2, GreedyTextAloneInABatchAndHoweverThePromptIsCut) {
  const infer::LoadedModel loaded = infer::load_model(path_);
  std::vector<std::vector<int64_t>> prompts;
  for (const char* text : {"The capital of France is", "Once upon a time", "Q"}) {
    const auto ids = loaded.tokenizer->encode(text, {.add_special = false});
    prompts.emplace_back(ids.begin(), ids.end());
  }
  infer::GenerateOptions options;
  options.max_new_tokens = 12;
  const auto together = infer::generate(loaded.model, &*loaded.tokenizer, prompts, options);
  EXPECT_NE(together.rows[0].text.find("Paris"), std::string::npos) << together.rows[0].text;
  options.prefill_chunk = 2;
  for (size_t r = 0; r < prompts.size(); ++r)
    EXPECT_EQ(
        infer::generate(loaded.model, &*loaded.tokenizer, {prompts[r]}, options).rows[0].token_ids,
        together.rows[r].token_ids);
  set_thread_count(1);
  EXPECT_EQ(infer::generate(loaded.model, &*loaded.tokenizer, prompts, options).rows[1].token_ids,
            together.rows[1].token_ids);
}

TEST_F(SmolLm2, MemoryStaysNearTheFile) {
  const Tensor warm =
      at::matmul(at::ones({64, 64}), at::ones({64, 64}));  // what libtorch takes by itself
  const int64_t before = resident_bytes();
  const infer::LoadedModel loaded = infer::load_model(path_);
  infer::GenerateOptions options;
  options.max_new_tokens = 8;
  const auto ids = loaded.tokenizer->encode("The capital of France is", {.add_special = false});
  infer::generate(loaded.model, nullptr, {{ids.begin(), ids.end()}}, options);
  const auto file = static_cast<int64_t>(fs::file_size(path_));
  const int64_t state =
      spec::state_bytes(model::state_layout(loaded.model.spec()).front().tensors, 16) * 30;
  EXPECT_LT(resident_bytes() - before, (file + state) * 12 / 10)
      << "file " << file << ", state " << state;
}

// Expected: rwkv.cpp's own test data, the logits after the bytes of a prompt of three.
TEST(Rwkv4, LogitsOfRwkvCpp) {
  const std::string data = variable("TESSERA_TEST_DATA");
  if (data.empty()) GTEST_SKIP() << "TESSERA_TEST_DATA is not set";
  const infer::LoadedModel loaded = infer::load_model(data + "/rwkv4/tiny-rwkv-4v0-660K-FP32.bin");
  const std::string bytes = read_text_file(data + "/rwkv4/expected-logits-4v0-660K.bin");
  std::vector<float> expected(256);
  ASSERT_EQ(bytes.size(), expected.size() * sizeof(float));
  std::memcpy(expected.data(), bytes.data(), bytes.size());
  const at::NoGradGuard no_gradients;
  const Tensor ids = at::tensor(std::vector<int64_t>{'"', 'i', 'n'}).reshape({1, 3});
  const Tensor logits =
      loaded.model.logits(loaded.model.hidden(model::from_padded(ids, {}, {}, {})));
  EXPECT_LT((logits[-1] - at::tensor(expected)).abs().max().item<double>(), 1e-4);
}

TEST(Stories260K, GreedyTextFromAnEmptyPrompt) {
  const std::string data = variable("TESSERA_TEST_DATA");
  if (data.empty()) GTEST_SKIP() << "TESSERA_TEST_DATA is not set";
  const infer::LoadedModel loaded = infer::load_model(data + "/stories260k/stories260K.bin");
  const text::Tokenizer tokenizer = convert::find_tokenizer(data + "/stories260k/tok512.bin", 512);
  const auto ids = tokenizer.encode("");
  infer::GenerateOptions options;
  options.max_new_tokens = 60;
  EXPECT_EQ(infer::generate(loaded.model, &tokenizer, {{ids.begin(), ids.end()}}, options)
                .rows[0]
                .text.rfind("Once upon a time, there was a little girl named Lily. She loved to "
                            "play outside in the park. One day, she saw a big, red ball.",
                            0),
            0u);
}

class MiniLm : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string cache = variable("TESSERA_CACHE");
    path_ = (cache.empty() ? fs::path(variable("HOME")) / ".cache/tessera" : fs::path(cache)) /
            "all-minilm-l6-v2";
    if (!fs::exists(path_)) GTEST_SKIP() << path_ << " is missing";
    golden_ = spec::read_json_file(std::string(TESSERA_SOURCE_DIR) + "/tests/golden/minilm.json");
  }
  /// Largest difference from the recorded vectors of one kind, relative to the largest of them.
  static double difference(const Tensor& found, const spec::Json& recorded) {
    double worst = 0, largest = 0;
    for (size_t r = 0; r < recorded.size(); ++r) {
      const auto want = recorded[r].get<std::vector<double>>();
      const Tensor row = found[static_cast<int64_t>(r)].to(at::kDouble).contiguous();
      if (row.numel() != static_cast<int64_t>(want.size())) return INFINITY;
      for (size_t i = 0; i < want.size(); ++i) {
        worst = std::max(worst, std::abs(row.const_data_ptr<double>()[i] - want[i]));
        largest = std::max(largest, std::abs(want[i]));
      }
    }
    return worst / largest;
  }
  fs::path path_;
  spec::Json golden_;
};

TEST_F(MiniLm, EmbeddingsAsTransformers) {
  const infer::LoadedModel loaded = infer::load_model(path_);
  const auto texts = golden_["texts"].get<std::vector<std::string>>();
  infer::EmbedOptions options = infer::embed_options_of(path_);
  EXPECT_EQ(options.poolings, std::vector{infer::Pooling::mean});
  EXPECT_TRUE(options.normalize);
  EXPECT_EQ(options.max_tokens, 256);
  const infer::Embeddings found = infer::embed(loaded, texts, options);
  EXPECT_EQ(spec::Json(found.tokens), golden_["tokens"]);
  EXPECT_EQ(found.cut, 1);
  EXPECT_LT(difference(found.vectors_RD, golden_["embeddings"]), 1e-4);
  options.normalize = false;
  for (const auto pooling : {infer::Pooling::cls, infer::Pooling::max}) {
    options.poolings = {pooling};
    EXPECT_LT(difference(infer::embed(loaded, texts, options).vectors_RD,
                         golden_[infer::name_of(pooling)]),
              1e-4)
        << infer::name_of(pooling);
  }
}

TEST_F(MiniLm, BlocksAndDigitsKeepTheVectors) {
  const fs::path lines = fs::path(variable("TESSERA_TEST_DATA")) / "tasks/sst2.dev.txt";
  if (!fs::exists(lines)) GTEST_SKIP() << lines << " is missing";
  std::vector<std::string> texts;
  std::ifstream file(lines);
  // a label and a space before the text
  for (std::string line; std::getline(file, line) && texts.size() < 400;)
    texts.push_back(line.substr(2));
  const infer::EmbedOptions options = infer::embed_options_of(path_);
  const auto vectors = [&](const infer::MatmulOptions& products) {
    return infer::embed(infer::load_model(path_, {}, {}, products), texts, options)
        .vectors_RD.to(at::kDouble);
  };
  const Tensor want = vectors({});
  // of cosines with the vectors of float32: mean and lowest
  for (const auto& [arithmetic, mean, lowest] :
       {std::tuple{kernels::Arithmetic::float32, 0.9998, 0.998},
        std::tuple{kernels::Arithmetic::int15, 0.9998, 0.998},
        std::tuple{kernels::Arithmetic::int8, 0.999, 0.99}}) {
    const Tensor cosines = (vectors(infer::MatmulOptions{arithmetic, DType::q8_0}) * want).sum(1);
    EXPECT_GT(cosines.mean().item<double>(), mean) << static_cast<int>(arithmetic);
    EXPECT_GT(cosines.min().item<double>(), lowest) << static_cast<int>(arithmetic);
    EXPECT_LT(cosines.min().item<double>(), 1 - 1e-9) << "nothing was rounded";
  }
}

TEST_F(MiniLm, ItsGgufFileGivesTheSameVectors) {
  const test::TemporaryFolder folder;
  const fs::path file = folder / "minilm.gguf";
  convert::write_gguf_model(convert::gguf_model_of(convert::load_checkpoint(path_)), file);
  const auto texts = golden_["texts"].get<std::vector<std::string>>();
  infer::EmbedOptions options = infer::embed_options_of(file);
  EXPECT_TRUE(options.stated);
  EXPECT_EQ(options.poolings, std::vector{infer::Pooling::mean});
  options.max_tokens = infer::embed_options_of(path_).max_tokens;  // which files do not say
  const infer::Embeddings found = infer::embed(infer::load_model(file), texts, options),
                          wanted = infer::embed(infer::load_model(path_), texts, options);
  EXPECT_EQ(found.tokens, wanted.tokens);
  EXPECT_TRUE(at::equal(found.vectors_RD, wanted.vectors_RD));
}

TEST_F(MiniLm, VocabularyAloneGivesTheSameTokens) {
  const text::Tokenizer whole = text::load_tokenizer(path_ / "tokenizer.json"),
                        alone = text::load_tokenizer(path_ / "vocab.txt");
  for (const spec::Json& text : golden_["texts"])
    EXPECT_EQ(alone.encode(text.get<std::string>()), whole.encode(text.get<std::string>()));
}

}  // namespace
}  // namespace tessera
