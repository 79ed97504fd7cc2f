#include "tessera/format/zip_archive.h"

#include <algorithm>
#include <array>
#include <set>

namespace tessera::format {
namespace {

constexpr uint32_t kLocalHeader = 0x04034b50, kCentralHeader = 0x02014b50, kEndRecord = 0x06054b50,
                   kZip64Locator = 0x07064b50, kZip64EndRecord = 0x06064b50;
constexpr size_t kLocalBytes = 30, kCentralBytes = 46, kEndBytes = 22, kLocatorBytes = 20,
                 kZip64EndBytes = 56;
constexpr size_t kMaxComment = 65'535;
constexpr uint32_t kIn64Bits = 0xffffffff;  // "see the zip64 field"
constexpr uint16_t kZip64Field = 1;
constexpr uint16_t kEncrypted = 1 << 0, kSizesBehind = 1 << 3, kHeaderHidden = 1 << 13;

template <class T>
T number_at(std::span<const std::byte> bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

/// The directory's record at the end of the archive.
struct Directory {
  uint64_t entries = 0, size = 0, offset = 0;
  size_t end = 0;  // entries end at this byte at the latest
};

struct ZipSizes {
  uint64_t packed, plain, offset;
};

class ZipReader {
 public:
  ZipReader(std::span<const std::byte> bytes, const FileSource& source)
      : bytes_(bytes), source_(source) {}

  std::vector<ZipEntry> read() {
    const Directory directory = find_directory();
    if (directory.offset > directory.end || directory.size > directory.end - directory.offset)
      source_.fail("the zip directory lies by its record in bytes {} to {}; expected it before byte {}",
                   directory.offset, directory.offset + directory.size, directory.end);
    if (directory.entries > directory.size / kCentralBytes)
      source_.fail("{} zip entries in a directory of {} bytes; at most {} fit", directory.entries,
                   directory.size, directory.size / kCentralBytes);
    ByteReader reader(
        bytes_.subspan(static_cast<size_t>(directory.offset), static_cast<size_t>(directory.size)),
        source_);
    std::vector<ZipEntry> entries;
    std::set<std::string, std::less<>> names;
    for (uint64_t i = 0; i < directory.entries; ++i) {
      ZipEntry entry = read_entry(reader, directory.offset);
      if (!names.insert(entry.name).second)
        source_.fail("two zip entries are named {}", in_quotes(entry.name));
      if (!entry.name.ends_with('/')) entries.push_back(std::move(entry));
    }
    check_apart();
    return entries;
  }

 private:
  /// [begin, end) of the file
  struct Extent {
    uint64_t begin, end;
    std::string name;
  };

  Directory find_directory() const {
    if (bytes_.size() < kEndBytes)
      source_.fail("{} bytes; expected a zip archive of at least {}", bytes_.size(), kEndBytes);
    // the end record is the last thing in the file but for a comment of known length
    const size_t last = bytes_.size() - kEndBytes;
    for (size_t back = 0; back <= std::min(last, kMaxComment); ++back)
      if (number_at<uint32_t>(bytes_, last - back) == kEndRecord &&
          number_at<uint16_t>(bytes_, last - back + 20) == back)
        return directory_at(last - back);
    source_.fail("begins as a zip archive and has no end record: the file is cut off");
  }

  Directory directory_at(size_t end) const {
    const auto half = [&](size_t at) { return number_at<uint16_t>(bytes_, end + at); };
    const auto word = [&](size_t at) { return number_at<uint32_t>(bytes_, end + at); };
    if (half(4) != half(6) || (half(4) != 0 && half(4) != 0xffff))
      source_.fail("is one part of a zip archive in several; expected a whole one");
    Directory found{half(10), word(12), word(16), end};
    if (end < kLocatorBytes || number_at<uint32_t>(bytes_, end - kLocatorBytes) != kZip64Locator)
      return found;
    const auto at = number_at<uint64_t>(bytes_, end - kLocatorBytes + 8);
    const size_t limit = end - kLocatorBytes;
    if (at > limit || limit - at < kZip64EndBytes ||
        number_at<uint32_t>(bytes_, static_cast<size_t>(at)) != kZip64EndRecord)
      source_.fail("the zip64 end record should be at byte {}; expected it there, before {}",
                   at, limit);
    const auto wide = [&](size_t off) {
      return number_at<uint64_t>(bytes_, static_cast<size_t>(at) + off);
    };
    const Directory wider{wide(32), wide(40), wide(48), static_cast<size_t>(at)};
    const auto agrees = [](uint64_t narrow, uint64_t all, uint64_t exact) {
      return narrow == all || narrow == exact;
    };
    if (!agrees(found.entries, 0xffff, wider.entries) ||
        !agrees(found.size, kIn64Bits, wider.size) ||
        !agrees(found.offset, kIn64Bits, wider.offset))
      source_.fail("the end record and the zip64 end record disagree on the zip directory");
    return wider;
  }

  /// The 64-bit numbers of an extra field in place of those that are full, in their fixed order.
  void widen(std::span<const std::byte> extra, std::string_view name, ZipSizes& sizes) const {
    ByteReader fields(extra, source_);
    while (fields.remaining() >= 4) {
      const auto id = fields.read<uint16_t>("a zip extra field");
      const auto field =
          fields.take(fields.read<uint16_t>("a zip extra field"), "a zip extra field");
      if (id != kZip64Field) continue;
      ByteReader numbers(field, source_);
      for (uint64_t* size : {&sizes.plain, &sizes.packed, &sizes.offset})
        if (*size == kIn64Bits) *size = numbers.read<uint64_t>("the zip64 field of an entry");
      return;
    }
    for (const uint64_t size : {sizes.plain, sizes.packed, sizes.offset})
      if (size == kIn64Bits)
        source_.fail("zip entry {} needs a zip64 field; found none", in_quotes(name));
  }

  ZipEntry read_entry(ByteReader& reader, uint64_t directory) {
    const auto head = reader.take(kCentralBytes, "the zip directory");
    if (number_at<uint32_t>(head, 0) != kCentralHeader)
      source_.fail("byte {} holds no entry of the zip directory; expected one",
                   directory + reader.position() - kCentralBytes);
    const auto flags = number_at<uint16_t>(head, 8), method = number_at<uint16_t>(head, 10);
    ZipSizes sizes{number_at<uint32_t>(head, 20), number_at<uint32_t>(head, 24),
                   number_at<uint32_t>(head, 42)};
    ZipEntry entry;
    entry.crc32 = number_at<uint32_t>(head, 16);
    entry.name = text_of(reader.take(number_at<uint16_t>(head, 28), "the name of a zip entry"));
    widen(reader.take(number_at<uint16_t>(head, 30), "a zip extra field"), entry.name, sizes);
    reader.take(number_at<uint16_t>(head, 32), "the comment of a zip entry");
    if ((flags & (kEncrypted | kHeaderHidden)) != 0)
      source_.fail("zip entry {} is encrypted; expected a plain one", in_quotes(entry.name));
    if (method != 0)
      source_.fail("zip entry {} is compressed (method {}); expected stored, as torch.save writes",
                   in_quotes(entry.name), method);
    if (sizes.packed != sizes.plain)
      source_.fail("zip entry {} is stored and has two sizes, {} and {}", in_quotes(entry.name),
                   sizes.packed, sizes.plain);
    entry.data = data_of(entry, sizes, flags, directory);
    return entry;
  }

  /// The bytes after the local header, which must equal the directory's entry.
  std::span<const std::byte> data_of(const ZipEntry& entry,
                                     const ZipSizes& sizes,
                                     uint16_t flags,
                                     uint64_t directory) {
    const std::string name = in_quotes(entry.name);
    if (sizes.offset > directory || directory - sizes.offset < kLocalBytes)
      source_.fail("zip entry {} begins at byte {}; expected it before the directory at {}", name,
                   sizes.offset, directory);
    ByteReader local(bytes_.subspan(static_cast<size_t>(sizes.offset),
                                    static_cast<size_t>(directory - sizes.offset)),
                     source_);
    const auto head = local.take(kLocalBytes, "a local zip header");
    if (number_at<uint32_t>(head, 0) != kLocalHeader)
      source_.fail("zip entry {}: no local header at byte {}", name, sizes.offset);
    const auto own = text_of(local.take(number_at<uint16_t>(head, 26), "the name of a zip entry"));
    if (own != entry.name)
      source_.fail("zip entry {} is named {} in its local header", name, in_quotes(own));
    const auto extra = local.take(number_at<uint16_t>(head, 28), "a zip extra field");
    if (number_at<uint16_t>(head, 8) != 0)
      source_.fail("zip entry {} is compressed in its local header alone", name);
    if ((number_at<uint16_t>(head, 6) & kSizesBehind) != (flags & kSizesBehind) ||
        (number_at<uint16_t>(head, 6) & kEncrypted) != 0)
      source_.fail("zip entry {} has other flags in its local header", name);
    if ((flags & kSizesBehind) == 0) {
      ZipSizes again{number_at<uint32_t>(head, 18), number_at<uint32_t>(head, 22), 0};
      widen(extra, entry.name, again);
      if (again.packed != sizes.packed || again.plain != sizes.plain ||
          number_at<uint32_t>(head, 14) != entry.crc32)
        source_.fail(
            "zip entry {} has {} bytes in the directory and {} in its local header, or "
            "two checksums",
            name, sizes.packed, again.packed);
    }
    if (sizes.plain > local.remaining())
      source_.fail("zip entry {} has {} bytes; {} lie before the directory", name, sizes.plain,
                   local.remaining());
    const auto data = local.take(sizes.plain, "a zip entry");
    extents_.push_back({sizes.offset, sizes.offset + local.position(), entry.name});
    return data;
  }

  /// No byte belongs to two entries: what is read of a file is at most the file.
  void check_apart() {
    std::sort(extents_.begin(), extents_.end(),
              [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
    for (size_t i = 1; i < extents_.size(); ++i)
      if (extents_[i].begin < extents_[i - 1].end)
        source_.fail("zip entries {} and {} overlap", in_quotes(extents_[i - 1].name),
                     in_quotes(extents_[i].name));
  }

  std::span<const std::byte> bytes_;
  const FileSource& source_;
  std::vector<Extent> extents_;
};

using CrcTables = std::array<std::array<uint32_t, 256>, 8>;

/// Tables of eight bytes at a time: table k holds what a byte does to the sum k bytes later.
constexpr CrcTables crc_tables() {
  CrcTables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t sum = byte;
    for (int bit = 0; bit < 8; ++bit) sum = (sum >> 1) ^ ((sum & 1) != 0 ? 0xedb88320U : 0U);
    tables[0][byte] = sum;
  }
  for (size_t k = 1; k < tables.size(); ++k)
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8) ^ tables[0][before & 0xff];
    }
  return tables;
}
constexpr CrcTables kCrcTables = crc_tables();

}  // namespace

std::vector<ZipEntry> read_zip(std::span<const std::byte> bytes, const FileSource& source) {
  return ZipReader(bytes, source).read();
}

uint32_t crc32(std::span<const std::byte> bytes) {
  uint32_t sum = 0xffffffff;
  size_t at = 0;
  for (; at + 8 <= bytes.size(); at += 8) {
    const uint64_t eight = number_at<uint64_t>(bytes, at) ^ sum;
    sum = 0;
    for (size_t k = 0; k < 8; ++k) sum ^= kCrcTables[7 - k][(eight >> (8 * k)) & 0xff];
  }
  for (; at < bytes.size(); ++at)
    sum = (sum >> 8) ^ kCrcTables[0][(sum ^ static_cast<uint32_t>(bytes[at])) & 0xff];
  return ~sum;
}

void check_crc(const ZipEntry& entry, const FileSource& source) {
  // what torch.serialization.set_crc32_options(False) writes
  if (entry.crc32 == 0) return;
  const uint32_t sum = crc32(entry.data);
  if (sum != entry.crc32)
    source.fail("zip entry {} has checksum {:08x}; expected {:08x}: the file is damaged",
                in_quotes(entry.name), sum, entry.crc32);
}

}  // namespace tessera::format
