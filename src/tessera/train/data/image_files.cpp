#include "tessera/train/data/image_files.h"

#include <cmath>

namespace tessera::train {
namespace {

constexpr uint32_t kIdxImages = 0x803, kIdxLabels = 0x801;

/// Number `i` of a header, big-endian; 0 beyond the file.
uint32_t header_number(std::span<const std::byte> bytes, size_t i) {
  uint32_t value = 0;
  if (bytes.size() < 4 * (i + 1)) return 0;
  for (size_t b = 4 * i; b < 4 * i + 4; ++b) value = value << 8 | static_cast<uint32_t>(bytes[b]);
  return value;
}

void add_number(std::string& out, uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(value >> shift & 0xFF);
}

/// The bytes of a file after its header. Throws Error(file) for another number of them.
std::span<const std::byte> after_header(const DataFile& file, size_t header, uint64_t expected) {
  const auto bytes = file.raw();
  if (bytes.size() != header + expected)
    fail(ErrorKind::file, "data", "{}: {} bytes; expected {}, a header of {} and {} values",
         file.path(), bytes.size(), header + expected, header, expected);
  return bytes.subspan(header);
}

}  // namespace

format::Image StoredImage::read() const {
  format::Image image{where, height, width, channels, {}};
  const int64_t pixels = height * width;
  image.pixels.reserve(bytes.size());
  for (int64_t i = 0; i < pixels; ++i)
    for (int64_t c = 0; c < channels; ++c)
      image.pixels.push_back(std::to_integer<uint8_t>(
          bytes[static_cast<size_t>(has_planes ? c * pixels + i : i * channels + c)]));
  return image;
}

void for_each_cifar_record(const std::string& path,
                           bool fine,
                           const std::function<void(StoredImage image, int64_t label)>& visit) {
  constexpr int64_t kSide = 32, kChannels = 3;
  const size_t labels = fine ? 2 : 1, record = labels + kChannels * kSide * kSide;
  const DataFile file = DataFile::of_bytes(path);
  const auto bytes = file.raw();
  if (bytes.empty() || bytes.size() % record != 0)
    fail(ErrorKind::file, "data", "{}: {} bytes; expected records of {} (CIFAR-{}, binary version)",
         path, bytes.size(), record, fine ? 100 : 10);
  for (size_t i = 0; i < bytes.size() / record; ++i) {
    const auto own = bytes.subspan(i * record, record);
    visit({file, own.subspan(labels), kSide, kSide, kChannels, /*has_planes=*/true,
           fmt::format("{}: image {}", path, i + 1)},
          std::to_integer<int64_t>(own[labels - 1]));
  }
}

void for_each_cifar_image(
    const std::string& path,
    const std::function<void(std::string pixels, int64_t label, const std::string& where)>& visit) {
  for_each_cifar_record(path, /*fine=*/false, [&](const StoredImage& image, int64_t label) {
    const auto pixels = static_cast<size_t>(image.height * image.width);
    const auto value = [&](size_t plane, size_t pixel) {
      return static_cast<double>(image.bytes[plane * pixels + pixel]);
    };
    std::string greys;
    for (size_t i = 0; i < pixels; ++i) {
      const double grey = .2989 * value(0, i) + .5870 * value(1, i) + .1140 * value(2, i);
      greys += static_cast<char>(static_cast<uint8_t>(std::floor(grey / 255 * 255.5)));
    }
    visit(std::move(greys), label, image.where);
  });
}

void for_each_idx_record(const std::string& path,
                         const std::function<void(StoredImage image)>& visit) {
  const DataFile file = DataFile::of_bytes(path);
  if (header_number(file.raw(), 0) != kIdxImages)
    fail(ErrorKind::file, "data",
         "{}: no IDX file of images; expected bytes in three dimensions, magic number 0x{:08X}{}",
         path, kIdxImages,
         header_number(file.raw(), 0) >> 16 == 0x1F8B ? " (gunzip unpacks it)" : "");
  const uint64_t n = header_number(file.raw(), 1), rows = header_number(file.raw(), 2),
                 columns = header_number(file.raw(), 3), pixels = rows * columns;
  if (pixels == 0 || pixels > file.bytes() || n > file.bytes())
    fail(ErrorKind::file, "data", "{}: {} images of {} pixels in {} bytes; expected the whole file",
         path, n, pixels, file.bytes());
  const auto bytes = after_header(file, 16, n * pixels);
  for (uint64_t i = 0; i < n; ++i)
    visit({file, bytes.subspan(i * pixels, pixels), static_cast<int64_t>(rows),
           static_cast<int64_t>(columns), 1, /*has_planes=*/false,
           fmt::format("{}: image {}", path, i + 1)});
}

void for_each_idx_image(
    const std::string& path,
    const std::function<void(std::string pixels, const std::string& where)>& visit) {
  for_each_idx_record(path, [&](const StoredImage& image) {
    visit(std::string(reinterpret_cast<const char*>(image.bytes.data()), image.bytes.size()),
          image.where);
  });
}

std::optional<std::vector<int64_t>> read_idx_labels(const std::string& path) {
  const DataFile file = DataFile::of_bytes(path);
  if (header_number(file.raw(), 0) != kIdxLabels) return std::nullopt;
  std::vector<int64_t> labels;
  for (const std::byte label : after_header(file, 8, header_number(file.raw(), 1)))
    labels.push_back(static_cast<int64_t>(label));
  return labels;
}

std::string idx_images(const std::vector<std::vector<uint8_t>>& images, int64_t side) {
  std::string out;
  add_number(out, kIdxImages);
  add_number(out, static_cast<uint32_t>(images.size()));
  add_number(out, static_cast<uint32_t>(side));
  add_number(out, static_cast<uint32_t>(side));
  for (const std::vector<uint8_t>& image : images)
    out.append(reinterpret_cast<const char*>(image.data()), image.size());
  return out;
}

std::string idx_labels(const std::vector<int64_t>& labels) {
  std::string out;
  add_number(out, kIdxLabels);
  add_number(out, static_cast<uint32_t>(labels.size()));
  for (const int64_t label : labels) out += static_cast<char>(label);
  return out;
}

}  // namespace tessera::train
