#include "tessera/format/wav.h"

#include <gtest/gtest.h>

#include <limits>

#include "tessera/format/test_support.h"

namespace tessera::format::wav_test {
namespace {

using test::bytes_of;
using test::ByteString;

struct Header {
  uint16_t tag = 1, channels = 1, bits = 16;
  uint32_t rate = 16000;
  std::optional<uint16_t> align = std::nullopt;

  std::string text() const {
    return ByteString()
        .number(tag)
        .number(channels)
        .number(rate)
        .number(uint32_t{0})
        .number(align.value_or(static_cast<uint16_t>(channels * bits / 8)))
        .number(bits)
        .text();
  }
};

std::string chunk(std::string_view name, const std::string& data) {
  ByteString out;
  out.raw(name).number(static_cast<uint32_t>(data.size())).raw(data);
  if (data.size() % 2 != 0) out.zeros(1);
  return out.text();
}

std::string riff(const std::string& chunks) {
  return ByteString()
      .raw("RIFF")
      .number(static_cast<uint32_t>(4 + chunks.size()))
      .raw("WAVE")
      .raw(chunks)
      .text();
}

template <class T>
std::string numbers(std::initializer_list<T> values) {
  ByteString out;
  for (const T value : values) out.number(value);
  return out.text();
}

Sound read(std::string_view text) {
  return read_wav(bytes_of(text), "x.wav");
}

std::string sound_of(const Header& header, const std::string& data) {
  return riff(chunk("fmt ", header.text()) + chunk("data", data));
}

using Samples = std::vector<float>;

TEST(Wav, ReadsEveryKindOfSample) {
  const Sound sound = read(sound_of({.channels = 2}, numbers<int16_t>({0, 16384, -32768, 32767})));
  EXPECT_EQ(sound.rate, 16000);
  EXPECT_EQ(sound.channels, 2);
  EXPECT_EQ(sound.samples, (Samples{0, 0.5F, -1, 32767.0F / 32768}));
  EXPECT_EQ(mono(sound).samples, (Samples{0.25F, -1.0F / 65536}));
  EXPECT_EQ(read(sound_of({.bits = 8}, numbers<uint8_t>({128, 0, 192}))).samples,
            (Samples{0, -1, 0.5F}));
  EXPECT_EQ(read(sound_of({.bits = 24}, {"\0\0\x40\0\0\x80\xff\xff\xff", 9})).samples,
            (Samples{0.5F, -1, -1.0F / 8388608}));
  EXPECT_EQ(read(sound_of({.bits = 32}, numbers<int32_t>({1 << 30, -(1 << 30)}))).samples,
            (Samples{0.5F, -0.5F}));
  EXPECT_EQ(read(sound_of({.tag = 3, .bits = 32}, numbers({0.25F, -2.5F}))).samples,
            (Samples{0.25F, -2.5F}));
  EXPECT_EQ(read(sound_of({.tag = 3, .bits = 64}, numbers({0.25, -2.5}))).samples,
            (Samples{0.25F, -2.5F}));
}

TEST(Wav, SkipsOtherChunksAndReadsTheExtension) {
  const std::string extension = numbers<uint16_t>({22, 16}) + numbers<uint32_t>({4}) +
                                numbers<uint16_t>({1}) + std::string(14, '\0');
  const std::string file =
      riff(chunk("LIST", "odd") + chunk("fmt ", Header{.tag = 0xFFFE}.text() + extension) +
           chunk("fact", "1234") + chunk("data", numbers<int16_t>({8192})) + chunk("LIST", "more"));
  EXPECT_EQ(read(file).samples, Samples{0.25F});
}

TEST(Wav, RefusesEveryPrefix) {
  test::expect_prefixes_refused(sound_of({.channels = 2}, numbers<int16_t>({1, 2, 3, 4})), read);
}

TEST(Wav, SaysWhichRuleIsBroken) {
  const std::string data = numbers<int16_t>({1, 2}), good = sound_of({}, data);
  std::string other = good, mp3 = "\xff\xfb\x90\x44 no sound of ours at all";
  other.replace(8, 4, "AVI ");
  test::expect_refused(
      {
          {"empty", "", "no WAV file"},
          {"mp3", mp3,
           "no WAV file: it begins with \"\\xff\\xfb\\x90D no soun\"; expected \"RIFF\""},
          {"avi", other, "no WAV file"},
          {"no chunks", riff(""), "no chunk \"fmt \""},
          {"no data", riff(chunk("fmt ", Header{}.text())), "no chunk \"data\""},
          {"data first", riff(chunk("data", data)), "without a chunk \"fmt \" before it"},
          {"twice", riff(chunk("fmt ", Header{}.text()) + chunk("fmt ", Header{}.text())),
           "two chunks \"fmt \""},
          {"short fmt", riff(chunk("fmt ", "abc")), "the file ends inside chunk \"fmt \""},
          {"compressed", sound_of({.tag = 2, .bits = 4}, data), "format 2 with 4 bits"},
          {"odd bits", sound_of({.bits = 12}, data), "format 1 with 12 bits"},
          {"half floats", sound_of({.tag = 3, .bits = 16}, data), "format 3 with 16 bits"},
          {"no channel", sound_of({.channels = 0}, data), "0 channels"},
          {"no rate", sound_of({.rate = 0}, data), "at 0 Hz"},
          {"align", sound_of({.align = 3}, data),
           "3 bytes for the samples of a moment; expected 2"},
          {"half a moment", sound_of({.channels = 2}, numbers<int16_t>({1})),
           "has 2 bytes; expected a multiple of 4"},
          {"not finite",
           sound_of({.tag = 3, .bits = 32},
                    numbers({0.0F, std::numeric_limits<float>::infinity()})),
           "sample 1 is inf"},
      },
      read);
}

TEST(Wav, OpensFilesAndNamesThem) {
  const test::TemporaryFolder folder;
  EXPECT_EQ(open_wav(folder.write("a.wav", sound_of({}, numbers<int16_t>({8192})))).samples,
            Samples{0.25F});
  EXPECT_NE(
      test::error_of([&] { open_wav(folder.write("b.wav", "text")); }).find("b.wav: no WAV file"),
      std::string::npos);
}

}  // namespace
}  // namespace tessera::format::wav_test
