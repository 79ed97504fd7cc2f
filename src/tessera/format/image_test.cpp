#include "tessera/format/image.h"

#include "tessera/base/testing.h"

namespace tessera::format::image_test {
namespace {

Image image_of(std::string_view text) {
  return read_image(std::as_bytes(std::span(text.data(), text.size())), "a.ppm");
}

std::string refusal_of(std::string_view text) {
  return test::error_of([&] { image_of(text); });
}

using Bytes = std::vector<uint8_t>;

// pnm(5): the same 2 x 1 pixels in every form
TEST(Image, FormsOfNetpbm) {
  const Image colour = image_of("P6 2 1 255\n\x01\x02\x03\xFF\xFE\xFD");
  EXPECT_EQ(colour.height, 1);
  EXPECT_EQ(colour.width, 2);
  EXPECT_EQ(colour.channels, 3);
  EXPECT_EQ(colour.pixels, (Bytes{1, 2, 3, 255, 254, 253}));
  EXPECT_EQ(image_of("P3\n# by hand\n2 1\n255\n1 2 3\n255 254 253\n").pixels, colour.pixels);
  EXPECT_EQ(image_of("P5\n1 2\n255\nab").pixels, (Bytes{'a', 'b'}));
  EXPECT_EQ(image_of("P2 1 2 1 0 1").pixels, (Bytes{0, 255}));
  // 16 bits, the larger byte first: 0x0180 / 0xFFFF of 255 is 1.494
  EXPECT_EQ(image_of(std::string_view("P5 2 1 65535\n\xFF\xFF\x01\x80", 17)).pixels,
            (Bytes{255, 1}));
  // a further image is not read
  EXPECT_EQ(image_of("P5 1 1 255\naP5 1 1 255\nb").pixels, (Bytes{'a'}));
  EXPECT_EQ(image_of(pnm_of(colour)).pixels, colour.pixels);
}

TEST(Image, RefusesInOneLine) {
  EXPECT_EQ(refusal_of("\xFF\xD8\xFF\xE0"),
            "[image] a.ppm: found JPEG; expected PNG, PPM or PGM (ImageMagick: mogrify -format png "
            "FILES)");
  EXPECT_EQ(refusal_of("P1 1 1 1"),
            "[image] a.ppm: begins with \"P1\"; expected a PNG file, P5 or P6 (PGM, PPM), or P2 "
            "or P3");
  EXPECT_EQ(refusal_of("P5 2 2 255\nabc"),
            "[image] a.ppm: byte 0: the file ends inside the pixels: 3 bytes left; expected 4");
  EXPECT_EQ(refusal_of("P5 9 9 255\nabc"),
            "[image] a.ppm: 9 x 9 pixels of 1 channels in 14 bytes; expected the whole file");
  EXPECT_EQ(refusal_of("P6 0 3 255\n"),
            "[image] a.ppm: 3 x 0 pixels with values to 255; expected at least 1 of each");
  EXPECT_EQ(refusal_of("P5 1 1 9\n\x0A"),
            "[image] a.ppm: value 0 is 10; expected at most the maximum of the header, 9");
  for (const char* text : {"", "P", "P5", "P5 ", "P5 x", "P5 1 1", "P5 1 1 70000\n", "P5 1 1 255",
                           "P2 1 1 255 a", "P2 1 1 255", "P5 99999999999999999999 1 255\na"})
    EXPECT_NE(refusal_of(text).find("expected"), std::string::npos) << text;
}

}  // namespace
}  // namespace tessera::format::image_test
