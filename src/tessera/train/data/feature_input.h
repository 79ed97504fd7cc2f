// Images and sounds as samples: in their files, as stored for training, and as inputs of an
// embedding of features. Torch-free.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/rng.h"
#include "tessera/format/image.h"
#include "tessera/format/wav.h"
#include "tessera/infer/encoders/feature_settings.h"

namespace tessera::train {

/// Data augmentation of training images.
struct AugmentRecipe {
  bool flip = false;
  int64_t crop_padding = 0;

  static constexpr auto fields() {
    using C = AugmentRecipe;
    using spec::field;
    return std::tuple{
        field("flip", &C::flip, "mirror an image left to right with probability 0.5"),
        field("crop_padding", &C::crop_padding,
              "pad an image with this number of black pixels on all sides and crop it to its size "
              "at random",
              {.min = 0})};
  }
};

/// An image or a sound in a file.
struct FeatureFile {
  std::function<format::Image()> image = {};
  std::function<format::Sound()> sound = {};
};

/// What an embedding of features reads of a document (nn/embed/feature_embed.h), before it is a
/// tensor.
struct FeatureInput {
  std::vector<int64_t> shape;
  std::vector<float> values = {};                   // of an image
  std::shared_ptr<const format::Sound> sound = {};  // its log-mel spectrogram is the input
  int64_t mels = 0;
};

/// An example in memory: an image at the model's size, or a sound of one channel.
struct StoredFeature {
  std::vector<int64_t> shape;  // of the input
  int64_t tokens = 0;
  std::vector<uint8_t> pixels = {};  // [channels, height, width]
  std::shared_ptr<const format::Sound> sound = {};
};

/// Makes inputs by the settings of a recipe.
class FeatureMaker {
 public:
  /// `settings`: completed for the embedding, which must outlive the maker; `longest`: tokens of
  /// an input.
  FeatureMaker(const nn::FeatureEmbedConfig& embed,
               infer::FeatureSettings settings,
               AugmentRecipe augment,
               int64_t longest)
      : embed_(embed), settings_(std::move(settings)), augment_(augment), longest_(longest) {}

  const infer::FeatureSettings& settings() const { return settings_; }
  /// Reads and resizes. Throws Error(file) and Error(input) for files that the model cannot read.
  StoredFeature stored(const FeatureFile& file) const;
  /// With a key: augmented by its random numbers.
  FeatureInput input(const StoredFeature& stored, const std::optional<RandomKey>& key) const;

 private:
  StoredFeature stored_image(const format::Image& image) const;
  StoredFeature stored_sound(format::Sound sound) const;
  void count_tokens(StoredFeature& stored, const std::string& file) const;

  const nn::FeatureEmbedConfig& embed_;
  infer::FeatureSettings settings_;
  AugmentRecipe augment_;
  int64_t longest_;
};

}  // namespace tessera::train
