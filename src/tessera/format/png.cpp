#include "tessera/format/png.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

namespace tessera::format {
namespace {

constexpr std::string_view kPngSignature = "\x89PNG\r\n\x1A\n";
constexpr int64_t kMostPngPixels = int64_t{1} << 27;
constexpr int kLongestCode = 15;  // bits of a Huffman code

/// Bits of a deflate stream, the lowest of a byte first.
class DeflateBits {
 public:
  DeflateBits(std::span<const std::byte> bytes, const FileSource& source)
      : bytes_(bytes), source_(source) {}

  uint32_t take(int n) {
    while (count_ < n) {
      if (at_ >= bytes_.size()) source_.fail("the compressed pixels end early; expected more");
      bits_ |= std::to_integer<uint32_t>(bytes_[at_++]) << count_;
      count_ += 8;
    }
    const uint32_t value = bits_ & ((uint32_t{1} << n) - 1);
    bits_ >>= n;
    count_ -= n;
    return value;
  }
  /// Drops the bits up to the next byte.
  void align() { bits_ = 0, count_ = 0; }
  size_t position() const { return at_; }
  const FileSource& source() const { return source_; }

 private:
  std::span<const std::byte> bytes_;
  const FileSource& source_;
  size_t at_ = 0;
  uint32_t bits_ = 0;
  int count_ = 0;
};

/// A canonical Huffman code (RFC 1951, 3.2.2).
class HuffmanCode {
 public:
  HuffmanCode(std::span<const uint8_t> lengths, const FileSource& source) {
    for (const uint8_t length : lengths) ++counts_[length];
    counts_[0] = 0;
    int left = 1;
    for (int length = 1; length <= kLongestCode; ++length) {
      left = 2 * left - counts_[static_cast<size_t>(length)];
      if (left < 0) source.fail("the compressed pixels have an impossible Huffman code");
    }
    std::array<int, kLongestCode + 2> begin{};
    for (size_t length = 1; length <= kLongestCode; ++length)
      begin[length + 1] = begin[length] + counts_[length];
    symbols_.resize(lengths.size());
    for (size_t symbol = 0; symbol < lengths.size(); ++symbol)
      if (lengths[symbol] > 0)
        symbols_[static_cast<size_t>(begin[lengths[symbol]]++)] = static_cast<uint16_t>(symbol);
  }
  uint16_t next(DeflateBits& bits) const {
    int code = 0, first = 0, index = 0;
    for (size_t length = 1; length <= kLongestCode; ++length) {
      code |= static_cast<int>(bits.take(1));
      const int count = counts_[length];
      if (code - count < first) return symbols_[static_cast<size_t>(index + code - first)];
      index += count;
      first = (first + count) << 1;
      code <<= 1;
    }
    bits.source().fail("the compressed pixels have an unknown Huffman code");
  }

 private:
  std::array<int, kLongestCode + 1> counts_{};
  std::vector<uint16_t> symbols_;
};

class Inflater {
 public:
  Inflater(std::span<const std::byte> bytes, size_t size, const FileSource& source)
      : bits_(bytes, source), source_(source), size_(size) {
    out_.reserve(size);
  }
  std::vector<uint8_t> run() {
    bool last = false;
    while (!last) {
      last = bits_.take(1) == 1;
      const uint32_t type = bits_.take(2);
      if (type == 0)
        stored();
      else if (type == 1)
        compressed(fixed_lengths(), std::vector<uint8_t>(30, 5));
      else if (type == 2)
        dynamic();
      else
        source_.fail("the compressed pixels have a block of type 3; expected 0 to 2");
    }
    return std::move(out_);
  }
  size_t position() const { return bits_.position(); }

 private:
  void put(uint8_t byte) {
    if (out_.size() >= size_)
      source_.fail("the compressed pixels are more than the {} bytes of the image", size_);
    out_.push_back(byte);
  }
  void stored() {
    bits_.align();
    const uint32_t n = bits_.take(16), inverse = bits_.take(16);
    if ((n ^ inverse) != 0xFFFF) source_.fail("the compressed pixels have a wrong length");
    for (uint32_t i = 0; i < n; ++i) put(static_cast<uint8_t>(bits_.take(8)));
  }
  static std::vector<uint8_t> fixed_lengths() {
    std::vector<uint8_t> lengths(288, 8);
    std::fill(lengths.begin() + 144, lengths.begin() + 256, 9);
    std::fill(lengths.begin() + 256, lengths.begin() + 280, 7);
    return lengths;
  }
  void dynamic() {
    constexpr std::array<uint8_t, 19> kOrder = {16, 17, 18, 0, 8,  7, 9,  6, 10, 5,
                                                11, 4,  12, 3, 13, 2, 14, 1, 15};
    const size_t literals = bits_.take(5) + 257, distances = bits_.take(5) + 1,
                 codes = bits_.take(4) + 4;
    std::vector<uint8_t> lengths(19, 0);
    for (size_t i = 0; i < codes; ++i) lengths[kOrder[i]] = static_cast<uint8_t>(bits_.take(3));
    const HuffmanCode of_lengths(lengths, source_);
    lengths.clear();
    while (lengths.size() < literals + distances) {
      const uint16_t symbol = of_lengths.next(bits_);
      if (symbol < 16) {
        lengths.push_back(static_cast<uint8_t>(symbol));
        continue;
      }
      if (symbol == 16 && lengths.empty())
        source_.fail("the compressed pixels repeat a length before the first one");
      const uint8_t value = symbol == 16 ? lengths.back() : uint8_t{0};
      const uint32_t times = symbol == 16   ? 3 + bits_.take(2)
                             : symbol == 17 ? 3 + bits_.take(3)
                                            : 11 + bits_.take(7);
      lengths.insert(lengths.end(), times, value);
    }
    if (lengths.size() > literals + distances)
      source_.fail("the compressed pixels have too many lengths of codes");
    const auto middle = lengths.begin() + static_cast<std::ptrdiff_t>(literals);
    compressed({lengths.begin(), middle}, {middle, lengths.end()});
  }
  void compressed(const std::vector<uint8_t>& literal_lengths,
                  const std::vector<uint8_t>& distance_lengths) {
    constexpr std::array<uint16_t, 29> kLength = {3,  4,  5,  6,   7,   8,   9,   10,  11, 13,
                                                  15, 17, 19, 23,  27,  31,  35,  43,  51, 59,
                                                  67, 83, 99, 115, 131, 163, 195, 227, 258};
    constexpr std::array<uint8_t, 29> kLengthBits = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2,
                                                     2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0};
    constexpr std::array<uint16_t, 30> kDistance = {
        1,   2,   3,   4,   5,   7,    9,    13,   17,   25,   33,   49,   65,    97,    129,
        193, 257, 385, 513, 769, 1025, 1537, 2049, 3073, 4097, 6145, 8193, 12289, 16385, 24577};
    const HuffmanCode literals(literal_lengths, source_), distances(distance_lengths, source_);
    for (;;) {
      const uint16_t symbol = literals.next(bits_);
      if (symbol < 256) {
        put(static_cast<uint8_t>(symbol));
        continue;
      }
      if (symbol == 256) return;
      const size_t length_code = symbol - 257U;
      if (length_code >= kLength.size())
        source_.fail("the compressed pixels have a length of code {}", symbol);
      const size_t length = kLength[length_code] + bits_.take(kLengthBits[length_code]);
      const uint16_t distance_code = distances.next(bits_);
      if (distance_code >= kDistance.size())
        source_.fail("the compressed pixels have a distance of code {}", distance_code);
      const int extra = distance_code < 2 ? 0 : distance_code / 2 - 1;
      const size_t distance = kDistance[distance_code] + bits_.take(extra);
      if (distance > out_.size())
        source_.fail("the compressed pixels repeat bytes before the first one");
      for (size_t i = 0; i < length; ++i) put(out_[out_.size() - distance]);
    }
  }

  DeflateBits bits_;
  const FileSource& source_;
  size_t size_;
  std::vector<uint8_t> out_;
};

/// Number `at` of bytes, big-endian.
uint32_t big_endian(std::span<const std::byte> bytes, size_t at) {
  uint32_t value = 0;
  for (size_t i = at; i < at + 4; ++i) value = value << 8 | std::to_integer<uint32_t>(bytes[i]);
  return value;
}

uint32_t crc32_of(std::span<const std::byte> bytes) {
  uint32_t crc = ~uint32_t{0};
  for (const std::byte byte : bytes) {
    crc ^= std::to_integer<uint32_t>(byte);
    for (int i = 0; i < 8; ++i) crc = crc >> 1 ^ ((crc & 1) != 0 ? 0xEDB88320U : 0);
  }
  return ~crc;
}

struct PngHeader {
  int64_t width = 0, height = 0;
  int depth = 0, colour = 0;

  /// Numbers of a pixel in the file.
  int samples() const { return colour == 2 ? 3 : colour == 4 ? 2 : colour == 6 ? 4 : 1; }
  int64_t row_bytes() const { return (width * samples() * depth + 7) / 8; }
};

PngHeader png_header(std::span<const std::byte> data, const FileSource& source) {
  if (data.size() != 13) source.fail("a header of {} bytes; expected 13", data.size());
  PngHeader h;
  h.width = big_endian(data, 0);
  h.height = big_endian(data, 4);
  h.depth = std::to_integer<int>(data[8]);
  h.colour = std::to_integer<int>(data[9]);
  const bool wide = h.colour == 2 || h.colour == 4 || h.colour == 6;
  const bool known =
      wide ? h.depth == 8 || h.depth == 16
           : (h.colour == 0 || h.colour == 3) && (h.depth == 1 || h.depth == 2 || h.depth == 4 ||
                                                  h.depth == 8 || (h.depth == 16 && h.colour == 0));
  if (!known || data[10] != std::byte{0} || data[11] != std::byte{0})
    source.fail("colour type {} with {} bits; expected a type and bits of PNG", h.colour, h.depth);
  if (data[12] != std::byte{0})
    source.fail("an interlaced PNG; expected one without (ImageMagick: mogrify -interlace none)");
  if (h.width == 0 || h.height == 0 || h.width > kMostPngPixels ||
      h.height > kMostPngPixels / h.width)
    source.fail("{} x {} pixels; expected 1 to {}", h.height, h.width, kMostPngPixels);
  return h;
}

uint8_t paeth(int left, int above, int corner) {
  const int p = left + above - corner, a = std::abs(p - left), b = std::abs(p - above),
            c = std::abs(p - corner);
  return static_cast<uint8_t>(a <= b && a <= c ? left : b <= c ? above : corner);
}

/// Undoes the filters of all rows (PNG, 9.2), each after its type.
void unfilter(std::vector<uint8_t>& raw, const PngHeader& h, const FileSource& source) {
  const auto step = static_cast<size_t>(std::max(1, h.samples() * h.depth / 8)),
             row = static_cast<size_t>(h.row_bytes()) + 1;
  for (size_t y = 0; y < static_cast<size_t>(h.height); ++y) {
    uint8_t* now = &raw[y * row];
    const uint8_t* before = y > 0 ? now - row : nullptr;
    const uint8_t filter = now[0];
    if (filter > 4) source.fail("row {} has filter {}; expected 0 to 4", y, filter);
    for (size_t i = 1; i < row; ++i) {
      const int left = i > step ? now[i - step] : 0, above = before != nullptr ? before[i] : 0,
                corner = before != nullptr && i > step ? before[i - step] : 0;
      const int add = filter == 1   ? left
                      : filter == 2 ? above
                      : filter == 3 ? (left + above) / 2
                      : filter == 4 ? paeth(left, above, corner)
                                    : 0;
      now[i] = static_cast<uint8_t>(now[i] + add);
    }
  }
}

Image pixels_of(const std::vector<uint8_t>& raw,
                const PngHeader& h,
                std::span<const std::byte> palette,
                const FileSource& source) {
  Image image;
  image.file = std::string(source.file);
  image.height = h.height;
  image.width = h.width;
  image.channels = h.colour == 0 || h.colour == 4 ? 1 : 3;
  image.pixels.reserve(static_cast<size_t>(h.height * h.width * image.channels));
  const int most = (1 << std::min(h.depth, 8)) - 1;
  for (int64_t y = 0; y < h.height; ++y) {
    const uint8_t* row = &raw[static_cast<size_t>(y * (h.row_bytes() + 1) + 1)];
    // sample i of the row; of 16 bits the upper 8
    const auto sample = [&](int64_t i) -> int {
      if (h.depth >= 8) return row[i * h.depth / 8];
      const int64_t bit = i * h.depth;
      return row[bit / 8] >> (8 - h.depth - bit % 8) & most;
    };
    for (int64_t x = 0; x < h.width; ++x) {
      if (h.colour == 3) {
        const auto entry = 3 * static_cast<size_t>(sample(x));
        if (entry + 3 > palette.size())
          source.fail("a pixel has colour {}; the palette has {}", entry / 3, palette.size() / 3);
        for (size_t c = 0; c < 3; ++c)
          image.pixels.push_back(std::to_integer<uint8_t>(palette[entry + c]));
        continue;
      }
      for (int64_t c = 0; c < image.channels; ++c)
        image.pixels.push_back(static_cast<uint8_t>(sample(x * h.samples() + c) * 255 / most));
    }
  }
  return image;
}

}  // namespace

bool is_png(std::span<const std::byte> bytes) {
  return text_of(bytes).starts_with(kPngSignature);
}

std::vector<uint8_t> inflate_zlib(std::span<const std::byte> stream,
                                  size_t size,
                                  const FileSource& source) {
  ByteReader in(stream, source);
  const auto head = in.take(2, "the header of the compressed pixels");
  const auto method = std::to_integer<uint32_t>(head[0]),
             flags = std::to_integer<uint32_t>(head[1]);
  if ((method & 15) != 8 || (method * 256 + flags) % 31 != 0 || (flags & 32) != 0)
    source.fail("the compressed pixels begin with {:02X} {:02X}; expected a zlib stream", method,
                flags);
  Inflater inflater(stream.subspan(2), size, source);
  std::vector<uint8_t> out = inflater.run();
  if (out.size() != size) source.fail("{} bytes of pixels; expected {}", out.size(), size);
  ByteReader end(stream.subspan(2 + inflater.position()), source);
  const uint32_t expected = big_endian(end.take(4, "the check sum of the pixels"), 0);
  // Adler-32; sums stay below 2^32 for blocks of 5552 bytes
  uint32_t a = 1, b = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    a += out[i];
    b += a;
    if (i % 5552 == 5551) a %= 65521, b %= 65521;
  }
  if ((b % 65521 << 16 | a % 65521) != expected)
    source.fail("the check sum of the pixels differs; expected an undamaged file");
  return out;
}

Image read_png(std::span<const std::byte> bytes, const FileSource& source) {
  ByteReader in(bytes, source);
  in.take(kPngSignature.size(), "the signature");
  std::optional<PngHeader> header;
  std::span<const std::byte> palette;
  std::vector<std::byte> stream;
  for (bool ended = false; !ended;) {
    const uint32_t length = big_endian(in.take(4, "a chunk"), 0);
    const size_t begin = in.position();
    in.take(4, "a chunk");
    const auto data = in.take(length, "a chunk");
    const std::string_view type = text_of(bytes.subspan(begin, 4));
    if (big_endian(in.take(4, "a chunk"), 0) != crc32_of(bytes.subspan(begin, size_t{4} + length)))
      source.fail("byte {}: the check sum of chunk {} differs; expected an undamaged file", begin,
                  in_quotes(type));
    if (!header && type != "IHDR")
      source.fail("byte {}: chunk {}; expected \"IHDR\" first", begin, in_quotes(type));
    if (type == "IHDR")
      header = png_header(data, source);
    else if (type == "PLTE")
      palette = data;
    else if (type == "IDAT")
      stream.insert(stream.end(), data.begin(), data.end());
    ended = type == "IEND";
  }
  const auto size = static_cast<size_t>(header->height * (header->row_bytes() + 1));
  // a byte of deflate makes at most 1032
  constexpr size_t kMostRatio = 1032;
  if (size / kMostRatio > stream.size())
    source.fail("{} compressed bytes for {} bytes of pixels; expected more", stream.size(), size);
  std::vector<uint8_t> raw = inflate_zlib(stream, size, source);
  unfilter(raw, *header, source);
  return pixels_of(raw, *header, palette, source);
}

}  // namespace tessera::format
