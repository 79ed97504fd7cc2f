#include "tessera/train/data/feature_input.h"

#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/nn/embed/patches.h"

namespace tessera::train {

StoredFeature FeatureMaker::stored(const FeatureFile& file) const {
  return settings_.kind == infer::InputKind::image ? stored_image(file.image())
                                                   : stored_sound(file.sound());
}

void FeatureMaker::count_tokens(StoredFeature& stored, const std::string& file) const {
  stored.tokens = embed_.tokens(stored.shape);
  if (stored.tokens == 0)
    fail(ErrorKind::input, "data", "{}: {} [{}]; expected {}", file, embed_.input(),
         fmt::join(stored.shape, ", "), embed_.shape_text());
  if (stored.tokens > longest_)
    fail(ErrorKind::input, "data",
         "{}: {} [{}] are {} tokens; expected at most train.length = {} (a fixed size: {})", file,
         embed_.input(), fmt::join(stored.shape, ", "), stored.tokens, longest_,
         settings_.kind == infer::InputKind::image ? "data.image.height, data.image.width"
                                                   : "data.audio.seconds");
}

StoredFeature FeatureMaker::stored_image(const format::Image& image) const {
  const int64_t channels = dynamic_cast<const nn::PatchesConfig&>(embed_).channels,
                height = settings_.image.height > 0 ? settings_.image.height : image.height,
                width = settings_.image.width > 0 ? settings_.image.width : image.width;
  StoredFeature out{.shape = {channels, height, width}};
  count_tokens(out, image.file);
  out.pixels = infer::resized(image, channels, height, width);
  return out;
}

StoredFeature FeatureMaker::stored_sound(format::Sound sound) const {
  const infer::AudioSettings& audio = settings_.audio;
  const std::string file = sound.file;
  if (sound.rate != audio.rate)
    fail(ErrorKind::input, "data",
         "{}: {} Hz; expected {} (data.audio.rate, the same for all files; sox FILE -r {} OUT)",
         file, sound.rate, audio.rate, audio.rate);
  format::Sound one = format::mono(std::move(sound));
  if (audio.seconds > 0) one.samples.resize(static_cast<size_t>(audio.samples()), 0.0F);
  const int64_t n = std::ssize(one.samples);
  // a window is mirrored at both ends
  if (n <= audio.rate / 80)
    fail(ErrorKind::input, "data", "{}: {} samples; expected more than {}, half a window", file, n,
         audio.rate / 80);
  StoredFeature out{.shape = {audio.mels, n / audio.hop()}};
  if (dynamic_cast<const nn::PatchesConfig*>(&embed_) != nullptr)
    out.shape.insert(out.shape.begin(), 1);
  count_tokens(out, file);
  out.sound = std::make_shared<const format::Sound>(std::move(one));
  return out;
}

FeatureInput FeatureMaker::input(const StoredFeature& stored,
                                 const std::optional<RandomKey>& key) const {
  FeatureInput out{
      .shape = stored.shape, .values = {}, .sound = stored.sound, .mels = settings_.audio.mels};
  if (stored.sound != nullptr) return out;
  const int64_t height = stored.shape[1], width = stored.shape[2],
                padding = key ? augment_.crop_padding : 0;
  const auto draw = [&](uint64_t index) {
    return static_cast<int64_t>(key->uniform(index) * static_cast<float>(2 * padding + 1)) -
           padding;
  };
  const int64_t down = padding > 0 ? draw(1) : 0, right = padding > 0 ? draw(2) : 0;
  const bool flip = key && augment_.flip && key->uniform(0) < 0.5F;
  out.values.reserve(stored.pixels.size());
  for (int64_t c = 0; c < stored.shape[0]; ++c) {
    const auto channel = static_cast<size_t>(c);
    const double mean = settings_.image.mean[channel], std = settings_.image.std[channel];
    for (int64_t y = 0; y < height; ++y)
      for (int64_t x = 0; x < width; ++x) {
        const int64_t from_y = y + down, from_x = (flip ? width - 1 - x : x) + right;
        const bool inside = from_y >= 0 && from_y < height && from_x >= 0 && from_x < width;
        const double value =
            inside ? stored.pixels[static_cast<size_t>((c * height + from_y) * width + from_x)] : 0;
        out.values.push_back(static_cast<float>((value / 255 - mean) / std));
      }
  }
  return out;
}

}  // namespace tessera::train
