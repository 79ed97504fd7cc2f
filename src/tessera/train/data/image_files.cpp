#include "tessera/train/data/image_files.h"

#include <cmath>

#include "tessera/train/data/data_file.h"

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

void for_each_cifar_image(
    const std::string& path,
    const std::function<void(std::string pixels, int64_t label, const std::string& where)>& visit) {
  constexpr size_t kPixels = 1024, kRecord = 1 + 3 * kPixels;
  const DataFile file = DataFile::of_bytes(path);
  const auto bytes = file.raw();
  if (bytes.empty() || bytes.size() % kRecord != 0)
    fail(ErrorKind::file, "data", "{}: {} bytes; expected records of {} (CIFAR-10, binary version)",
         path, bytes.size(), kRecord);
  for (size_t record = 0; record < bytes.size() / kRecord; ++record) {
    const auto own = bytes.subspan(record * kRecord, kRecord);
    const std::string where = fmt::format("{}: image {}", path, record + 1);
    const auto value = [&](size_t plane, size_t pixel) {
      return static_cast<double>(own[1 + plane * kPixels + pixel]);
    };
    std::string pixels;
    for (size_t i = 0; i < kPixels; ++i) {
      const double grey = .2989 * value(0, i) + .5870 * value(1, i) + .1140 * value(2, i);
      pixels += static_cast<char>(static_cast<uint8_t>(std::floor(grey / 255 * 255.5)));
    }
    visit(std::move(pixels), static_cast<int64_t>(own[0]), where);
  }
}

void for_each_idx_image(
    const std::string& path,
    const std::function<void(std::string pixels, const std::string& where)>& visit) {
  const DataFile file = DataFile::of_bytes(path);
  if (header_number(file.raw(), 0) != kIdxImages)
    fail(ErrorKind::file, "data",
         "{}: no IDX file of images; expected bytes in three dimensions, magic number 0x{:08X}",
         path, kIdxImages);
  const uint64_t n = header_number(file.raw(), 1),
                 pixels = uint64_t{header_number(file.raw(), 2)} * header_number(file.raw(), 3);
  if (pixels == 0 || pixels > file.bytes() || n > file.bytes())
    fail(ErrorKind::file, "data", "{}: {} images of {} pixels in {} bytes; expected the whole file",
         path, n, pixels, file.bytes());
  const auto bytes = after_header(file, 16, n * pixels);
  for (uint64_t i = 0; i < n; ++i) {
    const auto own = bytes.subspan(i * pixels, pixels);
    visit(std::string(reinterpret_cast<const char*>(own.data()), own.size()),
          fmt::format("{}: image {}", path, i + 1));
  }
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
