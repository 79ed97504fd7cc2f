// Resizing against torch's antialiased interpolation, which equals PIL's; settings in files.
#include "tessera/infer/encoders/feature_settings.h"

#include "tessera/base/testing.h"
#include "tessera/nn/embed/frames.h"
#include "tessera/nn/embed/patches.h"
#include "tessera/ops/ops_testing.h"

namespace tessera::infer::feature_settings_test {
namespace {

using test::TemporaryFolder;

format::Image picture(int64_t height, int64_t width, int64_t channels) {
  format::Image out{"picture", height, width, channels, {}};
  for (int64_t i = 0; i < height * width * channels; ++i)
    out.pixels.push_back(static_cast<uint8_t>(i * i * 31 + i * 7 + 13));
  return out;
}

TEST(FeatureSettings, ResizesAsTorchDoes) {
  for (const auto& [from_height, from_width, height, width] :
       {std::tuple(7, 9, 4, 5), std::tuple(5, 4, 11, 13), std::tuple(32, 20, 32, 8),
        std::tuple(3, 3, 3, 3), std::tuple(40, 30, 1, 1)}) {
    const format::Image image = picture(from_height, from_width, 3);
    const std::vector<uint8_t> got = resized(image, 3, height, width);
    const Tensor x = at::tensor(std::vector<int64_t>(image.pixels.begin(), image.pixels.end()))
                         .reshape({1, from_height, from_width, 3})
                         .permute({0, 3, 1, 2})
                         .to(at::kDouble)
                         .contiguous();
    const Tensor want =
        at::_upsample_bilinear2d_aa(x, {height, width}, /*align_corners=*/false).flatten();
    ASSERT_EQ(std::ssize(got), want.numel());
    // each direction is rounded once
    for (int64_t i = 0; i < want.numel(); ++i)
      EXPECT_NEAR(got[static_cast<size_t>(i)], want[i].item<double>(), 1.01) << i;
  }
}

TEST(FeatureSettings, ColoursAndGreys) {
  const format::Image grey = picture(2, 2, 1);
  std::vector<uint8_t> thrice;
  for (int i = 0; i < 3; ++i) thrice.insert(thrice.end(), grey.pixels.begin(), grey.pixels.end());
  EXPECT_EQ(resized(grey, 3, 2, 2), thrice);
  // ITU-R 601-2: 0.299 * 10 + 0.587 * 20 + 0.114 * 250 = 43.23
  EXPECT_EQ(resized({"a", 1, 1, 3, {10, 20, 250}}, 1, 1, 1), (std::vector<uint8_t>{43}));
}

TEST(FeatureSettings, AreCompletedForAnEmbedding) {
  nn::PatchesConfig patches;
  patches.patch = patches.patch_width = patches.stride = patches.stride_width = 4;
  patches.height = patches.width = 8;
  FeatureSettings image;
  image.complete(patches, "data");
  EXPECT_EQ(image.image.mean, (std::vector<double>{0.5, 0.5, 0.5}));
  EXPECT_EQ(*image.shape(patches), (std::vector<int64_t>{3, 8, 8}));
  FeatureSettings other;
  other.image.height = 9;
  EXPECT_EQ(test::error_of([&] { other.complete(patches, "data"); }),
            "[data.image.height] found 9; the spec's embedding has 8");
  FeatureSettings sound{.kind = InputKind::audio};
  sound.audio.seconds = 1;
  sound.complete(nn::FramesConfig{}, "data");
  EXPECT_EQ(*sound.shape(nn::FramesConfig{}), (std::vector<int64_t>{80, 100}));
}

TEST(FeatureSettings, AreReadAndWritten) {
  const TemporaryFolder folder;
  EXPECT_FALSE(read_feature_settings(folder.path()));
  FeatureSettings image;
  image.image = {.height = 8, .width = 6, .mean = {0.1, 0.2, 0.3}, .std = {1, 2, 3}};
  write_feature_settings(folder.path(), image);
  const FeatureSettings again = *read_feature_settings(folder.path());
  EXPECT_EQ(again.kind, InputKind::image);
  EXPECT_EQ(again.image.width, 6);
  EXPECT_EQ(again.image.mean, image.image.mean);
  FeatureSettings sound{.kind = InputKind::audio};
  sound.audio = {.rate = 8000, .mels = 40, .seconds = 0.5};
  write_feature_settings(folder.path(), sound);
  EXPECT_EQ(read_feature_settings(folder.path())->audio.rate, 8000);
  EXPECT_EQ(read_feature_settings(folder.path())->audio.seconds, 0.5);
  // transformers' ViT of 2020
  folder.write("preprocessor_config.json",
               R"({"do_normalize": true, "do_resize": true, "image_mean": [0.5, 0.5, 0.5],
                   "image_std": [0.5, 0.5, 0.5], "resample": 2, "size": 224})");
  EXPECT_EQ(read_feature_settings(folder.path())->image.height, 224);
  for (const char* text :
       {R"({"size": -1})", R"({"size": {"height": 1e99}})", R"({"image_mean": ["a"]})",
        R"({"sampling_rate": 16000, "hop_length": 7})", R"({"sampling_rate": "x"})",
        R"({"feature_size": 99999999})", R"({"feature_size": 1, "chunk_length": -1})", "[]", "{"}) {
    folder.write("preprocessor_config.json", text);
    EXPECT_NE(test::error_of(ErrorKind::file, [&] { read_feature_settings(folder.path()); })
                  .find("preprocessor_config.json"),
              std::string::npos)
        << text;
  }
}

}  // namespace
}  // namespace tessera::infer::feature_settings_test
