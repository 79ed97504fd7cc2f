// Preprocessing of images and sounds for embeddings of features, as transformers'
// preprocessor_config.json states it. Torch-free.
//
//   pixel = (value / 255 - mean) / std of each channel, after resizing to the model's size
//   sound: the log-mel spectrogram of log_mel.h, windows of 25 ms every 10 ms
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "tessera/format/image.h"
#include "tessera/nn/embed/feature_embed.h"
#include "tessera/spec/fields.h"

namespace tessera::infer {

/// What a model of features reads.
enum class InputKind { image, audio };

struct ImageSettings {
  int64_t height = 0, width = 0;
  std::vector<double> mean = {}, std = {};

  static constexpr auto fields() {
    using C = ImageSettings;
    using spec::field;
    return std::tuple{
        field("height", &C::height,
              "images are resized to this height; 0 = the spec's, else each image's own",
              {.min = 0}),
        field("width", &C::width, "the same for their width", {.min = 0}),
        field(
            "mean", &C::mean,
            "mean of each channel, 0 to 1, or one for all; none = that of init's model, else 0.5"),
        field("std", &C::std, "the same for the standard deviation")};
  }
};

struct AudioSettings {
  int64_t rate = 0;
  int64_t mels = 0;
  double seconds = 0;

  static constexpr auto fields() {
    using C = AudioSettings;
    using spec::field;
    return std::tuple{
        field("rate", &C::rate,
              "sample rate of all files, Hz; 0 = that of init's model, else 16000", {.min = 0}),
        field("mels", &C::mels,
              "mel bands of a spectrogram; 0 = the spec's channels or height, else 128",
              {.min = 0}),
        field("seconds", &C::seconds,
              "sounds are cut or padded with silence to this length; 0 = each sound's own",
              {.min = 0})};
  }
  /// Samples from one window to the next, and of all seconds (0 = any).
  int64_t hop() const { return rate / 100; }
  int64_t samples() const;
};

/// Both, and which of them counts.
struct FeatureSettings {
  InputKind kind = InputKind::image;
  ImageSettings image = {};
  AudioSettings audio = {};

  /// Fills in what the embedding and the defaults give. Throws Error(spec), naming keys under
  /// `where`, for settings that do not fit the embedding.
  void complete(const nn::FeatureEmbedConfig& embed, const std::string& where);
  /// The shape of all inputs; nullopt if it varies. After complete().
  std::optional<std::vector<int64_t>> shape(const nn::FeatureEmbedConfig& embed) const;
};

/// The settings of a model's folder: preprocessor_config.json; nullopt without one. Throws
/// Error(file) for one that cannot be followed.
std::optional<FeatureSettings> read_feature_settings(const std::filesystem::path& folder);
/// Writes that file.
void write_feature_settings(const std::filesystem::path& folder, const FeatureSettings& settings);

/// [channels, height, width] bytes of an image at that size, by a triangle filter over the pixels
/// that a new one covers (PIL's bilinear filter; exact sums, one rounding for each direction). Grey
/// to colours repeats the value, colours to grey is ITU-R 601-2 luma.
std::vector<uint8_t> resized(const format::Image& image,
                             int64_t channels,
                             int64_t height,
                             int64_t width);

}  // namespace tessera::infer

template <>
struct tessera::spec::EnumNames<tessera::infer::InputKind> {
  using E = tessera::infer::InputKind;
  static constexpr std::array names{std::pair{E::image, "image"}, std::pair{E::audio, "audio"}};
};
