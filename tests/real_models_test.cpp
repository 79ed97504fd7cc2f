// Real checkpoints, read where they lie: SmolLM2-135M-Instruct as GGUF (TESSERA_SMOLLM2 names the
// file), stories260K and an RWKV-4 (in TESSERA_TEST_DATA). Skipped where they are absent.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "tessera/base/mapped_file.h"
#include "tessera/base/threads.h"
#include "tessera/convert/tokenizer.h"
#include "tessera/infer/evaluate.h"
#include "tessera/infer/generate.h"
#include "tessera/infer/load_model.h"
#include "tessera/model/padding.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
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

}  // namespace
}  // namespace tessera
