// Files of an encoder written from the specification, with Python's zlib (tools/golden/png.py).
#include "tessera/format/png.h"

#include <filesystem>

#include "tessera/base/mapped_file.h"
#include "tessera/base/testing.h"

namespace tessera::format::png_test {
namespace {

using Bytes = std::vector<uint8_t>;

std::string golden(const std::string& name) {
  return read_text_file(std::filesystem::path(TESSERA_SOURCE_DIR) / "tests/golden/png" /
                        (name + ".png"));
}

Image image_of(const std::string& bytes) {
  return read_image(std::as_bytes(std::span(bytes)), "a.png");
}

/// Byte i of the generator.
uint8_t value(int i) {
  return static_cast<uint8_t>(i * i * 7 + i * 13 + 5);
}

TEST(Png, AllFiltersBlocksAndSplitChunks) {
  Bytes want;
  for (int i = 0; i < 75; ++i) want.push_back(value(i));
  for (const char* name : {"rgb8", "stored"}) {
    const Image image = image_of(golden(name));
    EXPECT_EQ(image.channels, 3);
    EXPECT_EQ(image.height, 5);
    EXPECT_EQ(image.width, 5);
    EXPECT_EQ(image.pixels, want) << name;
  }
  const Image fixed = image_of(golden("fixed"));
  ASSERT_EQ(fixed.pixels.size(), 800U);
  for (size_t i = 0; i < 800; ++i) EXPECT_EQ(fixed.pixels[i], i / 40);
  // dynamic Huffman codes: eight letters; the sum is that of the generator
  const Image letters = image_of(golden("letters"));
  int64_t sum = 0;
  for (size_t i = 0; i < letters.pixels.size(); ++i)
    sum += static_cast<int64_t>(i % 97) * letters.pixels[i];
  EXPECT_EQ(letters.pixels.size(), 9000U);
  EXPECT_EQ(sum, 43336727);
}

TEST(Png, ColoursAndDepths) {
  EXPECT_EQ(image_of(golden("grey1")).pixels,
            (Bytes{255, 0,   255, 255, 0,   0,   255, 255, 0,   255,
                   255, 255, 255, 255, 255, 255, 255, 255, 255, 255}));
  EXPECT_EQ(image_of(golden("palette2")).pixels, (Bytes{1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(image_of(golden("grey_alpha16")).pixels, (Bytes{10, 30}));
  EXPECT_EQ(image_of(golden("rgba8")).pixels, (Bytes{1, 2, 3, 5, 6, 7}));
}

TEST(Png, RefusesDamagedFilesInOneLine) {
  const std::string good = golden("rgb8");
  const auto refusal = [](const std::string& bytes) {
    return test::error_of(ErrorKind::file, [&] { image_of(bytes); });
  };
  for (size_t n = 8; n < good.size(); ++n) {
    const std::string message = refusal(good.substr(0, n));
    EXPECT_NE(message.find("expected"), std::string::npos) << n << message;
    EXPECT_EQ(message.find('\n'), std::string::npos);
  }
  for (size_t i = 8; i < good.size(); ++i) {
    std::string other = good;
    other[i] = static_cast<char>(other[i] ^ 0x55);
    EXPECT_NE(refusal(other).find("a.png"), std::string::npos) << i;
  }
  EXPECT_NE(refusal(golden("interlaced")).find("an interlaced PNG; expected one without"),
            std::string::npos);
  // a stream of other lengths than the image
  const std::string_view empty("\x78\x9C\x03\0\0\0\0\x01", 8);
  const FileSource source{"image", "a.png"};
  const auto inflated = [&](size_t size) {
    return inflate_zlib(std::as_bytes(std::span(empty)), size, source);
  };
  EXPECT_TRUE(inflated(0).empty());
  EXPECT_EQ(test::error_of([&] { inflated(1); }), "[image] a.png: 0 bytes of pixels; expected 1");
}

}  // namespace
}  // namespace tessera::format::png_test
