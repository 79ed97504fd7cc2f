// Experts of a mapped file: read when they are chosen, and let go of where they are too many.
#include "tessera/infer/loading/expert_memory.h"

#include <gmock/gmock.h>

#include <fstream>

#include "tessera/base/testing.h"
#include "tessera/convert/checkpoint.h"
#include "tessera/infer/engine/generate.h"
#include "tessera/infer/infer_testing.h"
#include "tessera/infer/loading/load_model.h"

namespace tessera::infer::expert_memory_test {
namespace {

// matrices of 4 MiB: the kernel may map 2 MiB around what is read
constexpr int64_t kExperts = 16, kExpertBytes = 3 * 512 * 2048 * 4;

/// A folder with 16 experts of 12 MiB, of which a token uses one.
void write_model(const std::filesystem::path& folder) {
  const spec::Json json =
      spec::parse_json(R"({"tessera": 1, "arch": "decoder", "vocab": 23, "d_model": 512,
      "mixer": {"type": "attention", "n_heads": 2, "position": "rope"},
      "ffn": {"type": "moe", "n_experts": 16, "router": {"type": "top_k", "k": 1, "norm": 0},
              "expert": {"type": "glu", "d_hidden": 2048}},
      "layers": [{}]})",
                       "test");
  const model::ModelSpec spec = model::read_model_spec(json);
  const model::Weights weights = model::large_weights(spec, 5);
  std::vector<format::TensorView> views;
  for (const auto& [decl, weight] : weights.all())
    views.push_back({decl.name,
                     DType::f32,
                     decl.shape,
                     {static_cast<const std::byte*>(weight->dense_tensor().const_data_ptr()),
                      static_cast<size_t>(weight->bytes())}});
  convert::write_tessera_folder(model::resolve(spec), views, folder);
}

/// Bytes of a file's mapping that this process holds.
int64_t resident(const std::filesystem::path& file) {
  std::ifstream maps("/proc/self/smaps");
  int64_t kib = 0;
  bool ours = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.find('-') < line.find(' ') && line.find(" r") != std::string::npos)
      ours = line.ends_with(file.filename().string()) &&
             line.find(file.parent_path().filename().string()) != std::string::npos;
    if (ours && line.starts_with("Rss:")) kib += std::stoll(line.substr(4));
  }
  return kib << 10;
}

std::vector<int64_t> tokens_of(const Generations& all) {
  return all.rows[0].token_ids;
}

class ExpertMemoryOfAFile : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<test::TemporaryFolder>();
    write_model(*folder_ / "model");
  }
  static void TearDownTestSuite() { folder_.reset(); }
  LoadedModel loaded_ = load_model(*folder_ / "model");
  int64_t resident() const {
    return expert_memory_test::resident(*folder_ / "model" / "model.safetensors");
  }
  inline static std::unique_ptr<test::TemporaryFolder> folder_;
};

TEST_F(ExpertMemoryOfAFile, OnlyChosenExpertsAreRead) {
  EXPECT_LT(resident(), kExpertBytes / 2);
  GenerateOptions options;
  options.max_new_tokens = 2;
  generate(loaded_.model, nullptr, {{3}}, options);
  // two tokens with an expert each, and what the kernel maps around their matrices
  EXPECT_GT(resident(), kExpertBytes);
  EXPECT_LT(resident(), 5 * kExpertBytes);
}

TEST_F(ExpertMemoryOfAFile, StaysBelowItsBoundAndSaysTheSame) {
  GenerateOptions options;
  options.max_new_tokens = 60;
  options.sampling.temperature = 1;
  options.expert_memory = 2 * kExpertBytes;
  const std::vector<std::vector<int64_t>> prompt = {{3, 1, 4, 1, 5, 9, 2, 6}};
  const std::vector<int64_t> bounded = tokens_of(generate(loaded_.model, nullptr, prompt, options));
  EXPECT_LT(resident(), 6 * kExpertBytes);
  options.expert_memory = 0;
  EXPECT_EQ(tokens_of(generate(loaded_.model, nullptr, prompt, options)), bounded);
  EXPECT_GT(resident(), 8 * kExpertBytes);
}

TEST_F(ExpertMemoryOfAFile, TheLeastUsedGoFirst) {
  ExpertMemory memory(loaded_.model, 3 * kExpertBytes);
  const auto use = [&](std::vector<double> head) {
    head.resize(kExperts, 0);
    memory.count("layers.0.ffn.router.load", at::tensor(head, at::kDouble));
    memory.settle();
    std::vector<int64_t> held;
    for (int64_t e = 0; e < kExperts; ++e)
      if (memory.holds("layers.0.ffn.router", e)) held.push_back(e);
    return held;
  };
  using testing::ElementsAre;
  EXPECT_THAT(use({5, 5, 1}), ElementsAre(0, 1, 2));
  EXPECT_THAT(use({0, 0, 0, 9}), ElementsAre(0, 1, 3));
  EXPECT_THAT(use({0, 0, 1}), ElementsAre(0, 1, 3));  // less used than they are: it goes at once
  EXPECT_THAT(use({0, 0, 0, 0, 20, 20, 20}), ElementsAre(4, 5, 6));
  EXPECT_EQ(memory.held(), 3 * kExpertBytes);
  memory.count("layers.1.depth.share", at::ones({}));  // another's
  EXPECT_EQ(memory.held(), 3 * kExpertBytes);
}

TEST(ExpertMemory, WeightsThatLieInNoFileAreRefused) {
  const model::Model model = tiny_model(tiny_layers()[0].second, 7);
  EXPECT_THAT(test::error_of(ErrorKind::usage, [&] { ExpertMemory(model, 1); }),
              testing::HasSubstr("[experts] no experts of this model can be read"));
}

}  // namespace
}  // namespace tessera::infer::expert_memory_test
