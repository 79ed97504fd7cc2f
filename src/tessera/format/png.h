// Images in PNG format.
//
// Read: grey, colours and palettes of 1 to 16 bits, with alpha, which is left out; 16 bits keep the
// upper 8. Refused: interlaced images (Adam7), more than 2^27 pixels, wrong check sums. Errors:
// Error(file), one line. Sources: W3C, Portable Network Graphics (Second Edition), 2003; Deutsch,
// RFC 1950 (zlib) and RFC 1951 (deflate).
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "tessera/format/file_source.h"
#include "tessera/format/image.h"

namespace tessera::format {

/// True for the signature of a PNG file.
bool is_png(std::span<const std::byte> bytes);
Image read_png(std::span<const std::byte> bytes, const FileSource& source);

/// The `size` bytes of a zlib stream. Throws Error(file) for a stream of more or fewer, and for a
/// wrong check sum.
std::vector<uint8_t> inflate_zlib(std::span<const std::byte> stream,
                                  size_t size,
                                  const FileSource& source);

}  // namespace tessera::format
