#include "tessera/format/image.h"

#include <array>

#include "tessera/base/mapped_file.h"
#include "tessera/format/file_source.h"
#include "tessera/format/png.h"

namespace tessera::format {
namespace {

constexpr int64_t kMostPixelValue = 65535;

struct ForeignImage {
  std::string_view begins, name;
};
constexpr std::array kForeignImages = {ForeignImage{"\xFF\xD8\xFF", "JPEG"},
                                       ForeignImage{"GIF8", "GIF"},
                                       ForeignImage{"RIFF", "WebP or another RIFF format"},
                                       ForeignImage{"BM", "BMP"},
                                       ForeignImage{"II*", "TIFF"},
                                       ForeignImage{"MM", "TIFF"},
                                       ForeignImage{"\x1F\x8B", "compressed (gzip)"}};

/// The numbers of a header, or of all pixels of a file in text.
class PnmNumbers {
 public:
  PnmNumbers(std::string_view text, const FileSource& source) : text_(text), source_(source) {}

  int64_t next(const char* what, int64_t most) {
    skip_blanks();
    int64_t value = 0;
    const size_t begin = at_;
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
      value = 10 * value + (text_[at_] - '0');
      if (value > most)
        source_.fail("byte {}: {} is over {}; expected at most that", begin, what, most);
    }
    if (at_ == begin) source_.fail("byte {}: no {}; expected a whole number", begin, what);
    return value;
  }
  /// The one blank between a header and its bytes.
  size_t end_of_header() {
    if (at_ >= text_.size() || !is_space(text_[at_]))
      source_.fail("byte {}: no white space after the header; expected the pixels there", at_);
    return at_ + 1;
  }

 private:
  static bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
  void skip_blanks() {
    while (at_ < text_.size()) {
      if (text_[at_] == '#')
        while (at_ < text_.size() && text_[at_] != '\n') ++at_;
      else if (is_space(text_[at_]))
        ++at_;
      else
        return;
    }
  }
  std::string_view text_;
  const FileSource& source_;
  size_t at_ = 2;  // after the magic number
};

uint8_t eight_bits(int64_t value, int64_t most) {
  return static_cast<uint8_t>((value * 255 + most / 2) / most);
}

}  // namespace

Image read_image(std::span<const std::byte> bytes, std::string_view file) {
  const FileSource source{"image", file};
  const std::string_view text = text_of(bytes);
  if (is_lfs_pointer(text)) source.fail("{}", kLfsPointer);
  if (is_png(bytes)) return read_png(bytes, source);
  for (const ForeignImage& one : kForeignImages)
    if (text.starts_with(one.begins))
      source.fail("found {}; expected PNG, PPM or PGM (ImageMagick: mogrify -format png FILES)",
                  one.name);
  const char kind = text.size() < 2 || text[0] != 'P' ? '\0' : text[1];
  if (kind != '2' && kind != '3' && kind != '5' && kind != '6')
    source.fail("begins with {}; expected a PNG file, P5 or P6 (PGM, PPM), or P2 or P3",
                in_quotes(text.substr(0, 2)));
  const bool plain = kind < '5';
  Image image;
  image.file = std::string(file);
  image.channels = kind == '3' || kind == '6' ? 3 : 1;
  PnmNumbers numbers(text, source);
  // a side above the bytes of the file cannot be complete
  const auto most = static_cast<int64_t>(bytes.size());
  image.width = numbers.next("width", most);
  image.height = numbers.next("height", most);
  const int64_t top = numbers.next("maximum value", kMostPixelValue);
  if (image.width == 0 || image.height == 0 || top == 0)
    source.fail("{} x {} pixels with values to {}; expected at least 1 of each", image.height,
                image.width, top);
  const int64_t size = top > 255 ? 2 : 1;
  const auto pixels = checked_multiply(image.height, image.width);
  const auto values = pixels ? checked_multiply(*pixels, image.channels) : std::nullopt;
  // a value takes at least a byte
  if (!values || *values > most || (!plain && *values * size > most))
    source.fail("{} x {} pixels of {} channels in {} bytes; expected the whole file", image.height,
                image.width, image.channels, most);
  image.pixels.reserve(static_cast<size_t>(*values));
  if (plain) {
    for (int64_t i = 0; i < *values; ++i)
      image.pixels.push_back(eight_bits(numbers.next("value of a pixel", top), top));
    return image;
  }
  ByteReader in(bytes.subspan(numbers.end_of_header()), source);
  const auto own = in.take(static_cast<uint64_t>(*values * size), "the pixels");
  for (int64_t i = 0; i < *values; ++i) {
    const auto at = static_cast<size_t>(i * size);
    const int64_t value =
        size == 1 ? std::to_integer<int64_t>(own[at])
                  : 256 * std::to_integer<int64_t>(own[at]) + std::to_integer<int64_t>(own[at + 1]);
    if (value > top)
      source.fail("value {} is {}; expected at most the maximum of the header, {}", i, value, top);
    image.pixels.push_back(eight_bits(value, top));
  }
  return image;
}

Image open_image(const std::filesystem::path& path) {
  const auto file = MappedFile::open(path);
  return read_image(file->bytes(), path.string());
}

std::string pnm_of(const Image& image) {
  std::string out =
      fmt::format("P{}\n{} {}\n255\n", image.channels == 3 ? 6 : 5, image.width, image.height);
  out.append(reinterpret_cast<const char*>(image.pixels.data()), image.pixels.size());
  return out;
}

}  // namespace tessera::format
