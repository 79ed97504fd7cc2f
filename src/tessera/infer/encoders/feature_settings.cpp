#include "tessera/infer/encoders/feature_settings.h"

#include <algorithm>
#include <cmath>
#include <fstream>

#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/nn/embed/frames.h"
#include "tessera/nn/embed/patches.h"
#include "tessera/spec/json.h"

namespace tessera::infer {
namespace {

using spec::Json;

constexpr const char* kPreprocessor = "preprocessor_config.json";
constexpr int64_t kRate = 16000, kMels = 128;
constexpr double kMean = 0.5, kDeviation = 0.5;
/// Limits of untrusted files, so that sizes and their products fit.
constexpr int64_t kMostSide = 65536, kMostRate = 1'000'000, kMostMels = 4096;
constexpr double kMostSeconds = 86400;

/// The sources of one new pixel: the first of them, and their weights.
struct Taps {
  int64_t first = 0;
  std::vector<double> weights;
};

/// Of every new pixel along a side.
std::vector<Taps> taps_of(int64_t from, int64_t to) {
  const double scale = static_cast<double>(from) / static_cast<double>(to),
               reach = std::max(1.0, scale);
  std::vector<Taps> all;
  for (int64_t i = 0; i < to; ++i) {
    const double centre = (static_cast<double>(i) + 0.5) * scale;
    const auto first = std::max<int64_t>(0, static_cast<int64_t>(centre - reach + 0.5)),
               end = std::min(from, static_cast<int64_t>(centre + reach + 0.5));
    Taps taps{first, {}};
    double sum = 0;
    for (int64_t j = first; j < end; ++j) {
      const double distance = std::abs(static_cast<double>(j) + 0.5 - centre) / reach;
      taps.weights.push_back(std::max(0.0, 1 - distance));
      sum += taps.weights.back();
    }
    for (double& weight : taps.weights) weight /= sum;
    all.push_back(std::move(taps));
  }
  return all;
}

/// Resizes the middle of [before, from, after].
std::vector<uint8_t> resized_side(
    const std::vector<uint8_t>& x, int64_t before, int64_t from, int64_t after, int64_t to) {
  if (from == to) return x;
  const std::vector<Taps> taps = taps_of(from, to);
  std::vector<uint8_t> out(static_cast<size_t>(before * to * after));
  for (int64_t b = 0; b < before; ++b)
    for (int64_t i = 0; i < to; ++i)
      for (int64_t a = 0; a < after; ++a) {
        const Taps& own = taps[static_cast<size_t>(i)];
        double sum = 0.5;
        for (size_t j = 0; j < own.weights.size(); ++j)
          sum +=
              own.weights[j] *
              x[static_cast<size_t>((b * from + own.first + static_cast<int64_t>(j)) * after + a)];
        out[static_cast<size_t>((b * to + i) * after + a)] =
            static_cast<uint8_t>(std::clamp(sum, 0.0, 255.0));
      }
  return out;
}

[[noreturn]] void refuse_setting(const std::filesystem::path& path,
                                 const std::string& key,
                                 const Json& value,
                                 const char* expected) {
  fail(ErrorKind::file, "features", "{}: \"{}\" is {}; expected {}", path.string(), key,
       value.dump(-1, ' ', false, Json::error_handler_t::replace), expected);
}

/// A whole number of a range at a key; `otherwise` without one.
int64_t whole_setting(const Json& json,
                      const std::string& key,
                      int64_t most,
                      int64_t otherwise,
                      const std::filesystem::path& path) {
  const auto found = json.find(key);
  if (found == json.end() || found->is_null()) return otherwise;
  if (!found->is_number_integer() || *found < 1 || *found > most)
    refuse_setting(path, key, *found, "a whole number from 1");
  return found->get<int64_t>();
}

std::vector<double> channel_setting(const Json& json,
                                    const std::string& key,
                                    const std::filesystem::path& path) {
  std::vector<double> out;
  const auto found = json.find(key);
  if (found == json.end() || found->is_null()) return out;
  if (found->is_number()) return {found->get<double>()};
  if (!found->is_array()) refuse_setting(path, key, *found, "a number for each channel");
  for (const Json& one : *found) {
    if (!one.is_number()) refuse_setting(path, key, *found, "a number for each channel");
    out.push_back(one.get<double>());
  }
  return out;
}

}  // namespace

int64_t AudioSettings::samples() const {
  return static_cast<int64_t>(std::llround(seconds * static_cast<double>(rate)));
}

void FeatureSettings::complete(const nn::FeatureEmbedConfig& embed, const std::string& where) {
  const auto* patches = dynamic_cast<const nn::PatchesConfig*>(&embed);
  const auto* frames = dynamic_cast<const nn::FramesConfig*>(&embed);
  const auto fit = [&](int64_t& own, int64_t spec, int64_t otherwise, const char* key) {
    if (own == 0) own = spec > 0 ? spec : otherwise;
    if (spec > 0 && own != spec)
      fail(ErrorKind::spec, fmt::format("{}.{}", where, key),
           "found {}; the spec's embedding has {}", own, spec);
  };
  if (kind == InputKind::audio) {
    fit(audio.mels,
        frames != nullptr    ? frames->channels
        : patches != nullptr ? patches->height
                             : 0,
        kMels, "audio.mels");
    fit(audio.rate, 0, kRate, "audio.rate");
    if (audio.rate < 1000 || audio.rate > kMostRate)
      fail(ErrorKind::spec, where + ".audio.rate", "found {} Hz; expected 1000 to {}", audio.rate,
           kMostRate);
    if (!(audio.seconds <= kMostSeconds))
      fail(ErrorKind::spec, where + ".audio.seconds", "found {}; expected at most {}",
           audio.seconds, kMostSeconds);
    if (patches != nullptr && patches->channels != 1)
      fail(ErrorKind::spec, "spec.embed.channels",
           "found {}; a spectrogram has one channel; expected 1", patches->channels);
  } else {
    if (patches == nullptr)
      fail(ErrorKind::spec, where + ".input",
           "\"image\" with an embedding of sounds; expected \"audio\"");
    fit(image.height, patches->height, 0, "image.height");
    fit(image.width, patches->width, 0, "image.width");
    if (image.height > kMostSide || image.width > kMostSide)
      fail(ErrorKind::spec, where + ".image", "{} x {} pixels; expected sides to {}", image.height,
           image.width, kMostSide);
    for (auto [list, otherwise, key] :
         {std::tuple(&image.mean, kMean, "mean"), std::tuple(&image.std, kDeviation, "std")}) {
      if (list->empty()) list->push_back(otherwise);
      if (list->size() == 1) list->resize(static_cast<size_t>(patches->channels), list->front());
      if (std::ssize(*list) != patches->channels)
        fail(ErrorKind::spec, fmt::format("{}.image.{}", where, key),
             "{} numbers; expected one, or {}, one for each channel", list->size(),
             patches->channels);
      for (const double one : *list)
        if (!std::isfinite(one) || (list == &image.std && one <= 0))
          fail(ErrorKind::spec, fmt::format("{}.image.{}", where, key), "found {}; expected {}",
               one, list == &image.std ? "numbers above 0" : "numbers");
    }
  }
  if (const auto all = shape(embed); all && embed.tokens(*all) == 0)
    fail(ErrorKind::spec, where, "inputs of shape [{}]; expected {} (the spec's embedding)",
         fmt::join(*all, ", "), embed.shape_text());
}

std::optional<std::vector<int64_t>> FeatureSettings::shape(
    const nn::FeatureEmbedConfig& embed) const {
  const auto* patches = dynamic_cast<const nn::PatchesConfig*>(&embed);
  if (kind == InputKind::audio) {
    if (audio.seconds <= 0) return std::nullopt;
    const int64_t n = audio.samples() / audio.hop();
    return patches != nullptr ? std::vector{int64_t{1}, audio.mels, n} : std::vector{audio.mels, n};
  }
  if (patches == nullptr || image.height == 0 || image.width == 0) return std::nullopt;
  return std::vector{patches->channels, image.height, image.width};
}

std::optional<FeatureSettings> read_feature_settings(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / kPreprocessor;
  if (!std::filesystem::exists(path)) return std::nullopt;
  const Json json = spec::read_json_file(path);
  if (!json.is_object()) refuse_setting(path, "", json, "an object");
  FeatureSettings out;
  if (json.contains("sampling_rate") || json.contains("feature_size")) {
    out.kind = InputKind::audio;
    out.audio.rate = whole_setting(json, "sampling_rate", kMostRate, 0, path);
    out.audio.mels = whole_setting(json, "feature_size", kMostMels, 0, path);
    if (const Json seconds = json.value("chunk_length", Json()); seconds.is_number()) {
      out.audio.seconds = seconds.get<double>();
      if (!(out.audio.seconds > 0 && out.audio.seconds <= kMostSeconds))
        refuse_setting(path, "chunk_length", seconds, "seconds above 0");
    }
    // windows of 25 ms every 10 ms, where it names others
    const int64_t rate = out.audio.rate > 0 ? out.audio.rate : kRate;
    if (const int64_t hop = whole_setting(json, "hop_length", kMostRate, rate / 100, path);
        hop != rate / 100)
      refuse_setting(path, "hop_length", hop, "a hundredth of the sample rate");
    if (const int64_t n = whole_setting(json, "n_fft", kMostRate, rate / 40, path); n != rate / 40)
      refuse_setting(path, "n_fft", n, "a fortieth of the sample rate");
    return out;
  }
  const Json size = json.value("size", Json());
  if (size.is_number_integer()) {
    out.image.height = out.image.width = whole_setting(json, "size", kMostSide, 0, path);
  } else if (size.is_object()) {
    out.image.height = whole_setting(size, "height", kMostSide, 0, path);
    out.image.width = whole_setting(size, "width", kMostSide, 0, path);
  }
  if (const Json scale = json.value("rescale_factor", Json());
      scale.is_number() && std::abs(scale.get<double>() * 255 - 1) > 1e-6)
    refuse_setting(path, "rescale_factor", scale, "1 / 255");
  if (json.value("do_normalize", Json()) == Json(false)) {
    out.image.mean = {0};
    out.image.std = {1};
  } else {
    out.image.mean = channel_setting(json, "image_mean", path);
    out.image.std = channel_setting(json, "image_std", path);
  }
  return out;
}

void write_feature_settings(const std::filesystem::path& folder, const FeatureSettings& settings) {
  Json json;
  if (settings.kind == InputKind::audio) {
    json = {{"feature_extractor_type", "WhisperFeatureExtractor"},
            {"sampling_rate", settings.audio.rate},
            {"feature_size", settings.audio.mels},
            {"n_fft", settings.audio.rate / 40},
            {"hop_length", settings.audio.hop()}};
    if (settings.audio.seconds > 0) json["chunk_length"] = settings.audio.seconds;
  } else {
    const ImageSettings& image = settings.image;
    json = {{"image_processor_type", "ViTImageProcessor"},
            {"do_resize", image.height > 0 && image.width > 0},
            {"resample", 2},
            {"do_rescale", true},
            {"rescale_factor", 1.0 / 255},
            {"do_normalize", true},
            {"image_mean", image.mean},
            {"image_std", image.std}};
    if (image.height > 0 && image.width > 0)
      json["size"] = {{"height", image.height}, {"width", image.width}};
  }
  std::ofstream file(folder / kPreprocessor);
  file << json.dump(2) << "\n";
  if (!file.flush())
    fail(ErrorKind::resource, "features", "{} cannot be written",
         (folder / kPreprocessor).string());
}

std::vector<uint8_t> resized(const format::Image& image,
                             int64_t channels,
                             int64_t height,
                             int64_t width) {
  if (channels != 1 && channels != 3)
    fail(ErrorKind::input, "features", "{}: the model reads {} channels; expected 1 or 3",
         image.file, channels);
  // the channels first
  const auto n = static_cast<size_t>(image.height * image.width);
  std::vector<uint8_t> x(n * static_cast<size_t>(channels));
  for (size_t i = 0; i < n; ++i) {
    if (image.channels == channels) {
      for (size_t c = 0; c < static_cast<size_t>(channels); ++c)
        x[c * n + i] = image.pixels[i * static_cast<size_t>(channels) + c];
    } else if (channels == 3) {
      x[i] = x[n + i] = x[2 * n + i] = image.pixels[i];
    } else {
      // 65536 times 0.299, 0.587 and 0.114, as PIL has them
      const uint8_t* rgb = &image.pixels[3 * i];
      x[i] = static_cast<uint8_t>((rgb[0] * 19595 + rgb[1] * 38470 + rgb[2] * 7471 + 32768) >> 16);
    }
  }
  x = resized_side(x, channels * image.height, image.width, 1, width);
  return resized_side(x, channels, image.height, width, height);
}

}  // namespace tessera::infer
