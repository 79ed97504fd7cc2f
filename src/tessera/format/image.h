// Images: PNG (png.h) and portable pixmaps and graymaps (PPM, PGM), Netpbm's P2, P3, P5 and P6.
//
// Read of the latter: any maximum value up to 65535, scaled to 8 bits; comments in the header; the
// first image of a file. Other formats (JPEG, GIF, WebP, BMP, TIFF) are refused by name. Errors:
// Error(file), one line. Source: Netpbm, pnm(5), ppm(5), pgm(5).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::format {

struct Image {
  std::string file;  // for messages
  int64_t height = 0, width = 0;
  int64_t channels = 0;         // 1 = grey, 3 = red, green, blue
  std::vector<uint8_t> pixels;  // [height, width, channels]
};

Image open_image(const std::filesystem::path& path);
/// The same from memory; `file` is named in messages.
Image read_image(std::span<const std::byte> bytes, std::string_view file);

/// The bytes of a P5 or P6 file.
std::string pnm_of(const Image& image);

}  // namespace tessera::format
