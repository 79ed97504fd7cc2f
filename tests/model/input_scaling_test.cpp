// Scales that convert moves between matrices, seen by the models that they leave.
#include "tessera/convert/input_scaling.h"

#include <cmath>
#include <set>

#include <gtest/gtest.h>

#include "tessera/base/rng.h"
#include "tessera/base/testing.h"
#include "tessera/infer/loading/load_model.h"

namespace tessera::infer::input_scaling_test {
namespace {

namespace fs = std::filesystem;

Tensor logits_of(const fs::path& path) {
  const at::NoGradGuard no_gradients;
  const LoadedModel loaded = load_model(path);
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < 12; ++i) ids.push_back((7 * i + 3) % loaded.model.spec().vocab);
  return loaded.model.logits(loaded.model.hidden(nn::Batch::of({ids}, {0})));
}

/// The goldens of all families whose layers are known.
std::vector<fs::path> known_files() {
  std::vector<fs::path> files;
  for (const auto& folder :
       fs::directory_iterator(fs::path(TESSERA_SOURCE_DIR) / "tests/golden/families")) {
    if (!fs::exists(folder.path() / "gguf")) continue;
    for (const auto& file : fs::directory_iterator(folder.path() / "gguf")) try {
        convert::scaling_products(convert::read_gguf_model(file.path()));
        files.push_back(file.path());
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("are not known"), std::string::npos)
            << error.what();
      }
  }
  return files;
}

TEST(InputScaling, LeavesEveryFamilyAsItWas) {
  const test::TemporaryFolder folder;
  const std::vector<fs::path> files = known_files();
  std::set<fs::path> families;
  for (const fs::path& file : files) families.insert(file.parent_path());
  EXPECT_GE(families.size(), 20u);
  for (const fs::path& file : files) {
    SCOPED_TRACE(file.string());
    convert::GgufModel model = convert::read_gguf_model(file);
    const RandomKey key(3);
    uint64_t drawn = 0;
    const convert::InputScaling scaling =
        convert::scale_inputs_by(model, [&](const std::string&, int64_t k) {
          std::vector<float> scales;
          for (int64_t i = 0; i < k; ++i)
            scales.push_back(static_cast<float>(std::exp(0.5 * key.normal(drawn++))));
          return scales;
        });
    // every layer has a group behind each of its norms at least
    EXPECT_GE(std::ssize(scaling.scales), model.integer_or(".block_count", 0));
    convert::write_gguf_model(model, folder / "scaled.gguf");
    const Tensor before = logits_of(file), after = logits_of(folder / "scaled.gguf");
    EXPECT_LT((after - before).abs().max().item<double>(),
              2e-5 * before.abs().max().item<double>());
  }
}

TEST(InputScaling, SayWhatHasBecomeOfInputs) {
  convert::InputScaling scaling;
  scaling.scales["a"] = {2, 4};
  const convert::Importance importance = scaling.importance({{"a", {4, 16, 8, 32}}, {"b", {3, 5}}});
  EXPECT_EQ(importance.at("a"), (std::vector<float>{1, 1, 2, 2}));
  EXPECT_EQ(importance.at("b"), (std::vector<float>{3, 5}));
  const std::vector<float> products = {4, 8, 8, 32};
  const auto scaled = scaling.products(
      [&](const std::string& name, int64_t) { return name == "c" ? nullptr : products.data(); });
  const float* of_a = scaled("a", 0);
  EXPECT_EQ(std::vector<float>(of_a, of_a + 4), (std::vector<float>{1, 1, 1, 2}));
  EXPECT_EQ(scaled("b", 0), products.data());
  EXPECT_EQ(scaled("c", 0), nullptr);
}

TEST(InputScaling, RefusesLayersThatItDoesNotKnow) {
  convert::GgufModel model;
  model.architecture = "rwkv7";
  test::expect_error(ErrorKind::usage, "scales between matrices of rwkv7 are not known",
                     [&] { convert::scaling_products(model); });
}

}  // namespace
}  // namespace tessera::infer::input_scaling_test
