// ZIP archives whose entries are stored as they are, as torch.save and NumPy write them.
//
// Nothing is unpacked or copied: an entry is a part of the bytes that were given. Refused:
// compressed and encrypted entries, archives in several parts, entries that overlap one another or
// leave the file, two of one name, sizes on which the headers disagree. Zip64 is read. Source:
// PKWARE APPNOTE 6.3.10, sections 4.3 and 4.5.3.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tessera/format/file_source.h"

namespace tessera::format {

struct ZipEntry {
  std::string name;
  std::span<const std::byte> data;
  uint32_t crc32 = 0;  // as stored in the archive; 0: not computed. check_crc() compares
};

/// The entries in the order of the central directory, directories left out. Throws Error(file).
std::vector<ZipEntry> read_zip(std::span<const std::byte> bytes, const FileSource& source);

/// CRC-32 of ISO 3309 (zlib's).
uint32_t crc32(std::span<const std::byte> bytes);

/// Throws Error(file) where an entry's bytes are not those that were written.
void check_crc(const ZipEntry& entry, const FileSource& source);

}  // namespace tessera::format
