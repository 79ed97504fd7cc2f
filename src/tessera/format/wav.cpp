#include "tessera/format/wav.h"

#include <cmath>

#include "tessera/base/mapped_file.h"
#include "tessera/format/file_source.h"

namespace tessera::format {
namespace {

constexpr uint16_t kPcm = 1, kFloat = 3, kExtensible = 0xFFFE;

struct WavFormat {
  uint16_t tag = 0, channels = 0, bits = 0;
  uint32_t rate = 0;
  int64_t bytes_per_sample() const { return bits / 8; }
};

WavFormat wav_format(std::span<const std::byte> chunk, const FileSource& source) {
  ByteReader in(chunk, source);
  WavFormat f;
  f.tag = in.read<uint16_t>("chunk \"fmt \"");
  f.channels = in.read<uint16_t>("chunk \"fmt \"");
  f.rate = in.read<uint32_t>("chunk \"fmt \"");
  in.read<uint32_t>("chunk \"fmt \"");  // bytes per second: follows from the others
  const auto align = in.read<uint16_t>("chunk \"fmt \"");
  f.bits = in.read<uint16_t>("chunk \"fmt \"");
  if (f.tag == kExtensible) {
    in.take(8, "the extension of chunk \"fmt \"");  // its size, bits that count, loudspeakers
    f.tag = in.read<uint16_t>("the extension of chunk \"fmt \"");
  }
  const bool known =
      (f.tag == kPcm && (f.bits == 8 || f.bits == 16 || f.bits == 24 || f.bits == 32)) ||
      (f.tag == kFloat && (f.bits == 32 || f.bits == 64));
  if (!known)
    source.fail(
        "sound of format {} with {} bits; expected PCM (1) of 8, 16, 24 or 32 bits, or floats (3) "
        "of 32 or 64",
        f.tag, f.bits);
  if (f.channels == 0 || f.rate == 0)
    source.fail("{} channels at {} Hz; expected at least one of each", f.channels, f.rate);
  if (align != f.channels * f.bytes_per_sample())
    source.fail("{} bytes for the samples of a moment; expected {}, {} channels of {} bits", align,
                f.channels * f.bytes_per_sample(), f.channels, f.bits);
  return f;
}

float wav_sample(const std::byte* at, const WavFormat& f) {
  const auto as = [at]<class T>(T value) {
    std::memcpy(&value, at, sizeof(T));
    return value;
  };
  if (f.tag == kFloat) return f.bits == 32 ? as(float{}) : static_cast<float>(as(double{}));
  if (f.bits == 8) return static_cast<float>(static_cast<int>(*at) - 128) / 128.0F;
  if (f.bits == 16) return static_cast<float>(as(int16_t{})) / 32768.0F;
  if (f.bits == 32) return static_cast<float>(static_cast<double>(as(int32_t{})) / 2147483648.0);
  const auto low = static_cast<uint32_t>(at[0]), middle = static_cast<uint32_t>(at[1]),
             high = static_cast<uint32_t>(at[2]);
  const auto shifted = static_cast<int32_t>(low << 8 | middle << 16 | high << 24);
  return static_cast<float>(shifted / 256) / 8388608.0F;
}

std::vector<float> wav_samples(std::span<const std::byte> data,
                               const WavFormat& f,
                               const FileSource& source) {
  const auto size = static_cast<size_t>(f.bytes_per_sample());
  if (data.size() % (size * f.channels) != 0)
    source.fail("chunk \"data\" has {} bytes; expected a multiple of {}", data.size(),
                size * f.channels);
  std::vector<float> samples(data.size() / size);
  for (size_t i = 0; i < samples.size(); ++i) {
    samples[i] = wav_sample(data.data() + i * size, f);
    if (!std::isfinite(samples[i]))
      source.fail("sample {} is {}; expected a finite number", i, samples[i]);
  }
  return samples;
}

}  // namespace

Sound read_wav(std::span<const std::byte> bytes, std::string_view file) {
  const FileSource source{"wav", file};
  ByteReader in(bytes, source);
  const auto word = [&](std::string_view what) { return text_of(in.take(4, what)); };
  if (bytes.size() < 12 || text_of(bytes.first(4)) != "RIFF" ||
      text_of(bytes.subspan(8, 4)) != "WAVE")
    source.fail("no WAV file: it begins with {}; expected \"RIFF\", a size and \"WAVE\"",
                in_quotes(text_of(bytes.first(std::min<size_t>(bytes.size(), 12)))));
  in.take(12, "the header");
  std::optional<WavFormat> format;
  while (in.remaining() > 0) {
    const std::string_view name = word("the name of a chunk");
    const auto size = in.read<uint32_t>("the size of a chunk");
    const auto chunk = in.take(size, fmt::format("chunk {}", in_quotes(name)));
    if (size % 2 != 0 && in.remaining() > 0) in.take(1, "padding");
    if (name == "fmt ") {
      if (format) source.fail("two chunks \"fmt \"; expected one");
      format = wav_format(chunk, source);
    } else if (name == "data") {
      if (!format) source.fail("chunk \"data\" without a chunk \"fmt \" before it");
      return {std::string(file), format->rate, format->channels,
              wav_samples(chunk, *format, source)};
    }
  }
  source.fail("no chunk \"{}\"", format ? "data" : "fmt ");
}

Sound open_wav(const std::filesystem::path& path) {
  return read_wav(MappedFile::open(path)->bytes(), path.string());
}

Sound mono(Sound sound) {
  if (sound.channels == 1) return sound;
  const auto channels = static_cast<size_t>(sound.channels);
  std::vector<float> mean(sound.samples.size() / channels);
  for (size_t t = 0; t < mean.size(); ++t) {
    double sum = 0;
    for (size_t c = 0; c < channels; ++c) sum += sound.samples[t * channels + c];
    mean[t] = static_cast<float>(sum / static_cast<double>(channels));
  }
  sound.samples = std::move(mean);
  sound.channels = 1;
  return sound;
}

}  // namespace tessera::format
