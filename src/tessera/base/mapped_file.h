// Read-only files mapped into memory.
//
// A file that shrinks while it is mapped makes the kernel send SIGBUS on the next access beyond its
// end. Policy: install_truncation_guard() (called by the command line at start) turns a SIGBUS
// inside a mapping of ours into one clear line on stderr and exit code 1; any other SIGBUS keeps
// its default action.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

namespace tessera {

class MappedFile {
 public:
  /// Maps the whole file. Throws Error(file) when it is missing, not a regular file, or unreadable.
  static std::shared_ptr<const MappedFile> open(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }

 private:
  MappedFile(std::filesystem::path path, const std::byte* data, size_t size);
  std::filesystem::path path_;
  const std::byte* data_;
  size_t size_;
};

void install_truncation_guard();

/// Whether all of it lies in a file that is mapped here.
bool is_mapped(std::span<const std::byte> bytes);
/// Lets go of the pages that lie wholly in `bytes` of a mapped file: they take no memory until they
/// are read again. Returns how many bytes they have; 0 of other memory.
size_t release_pages(std::span<const std::byte> bytes);

/// Whole small file as text; throws Error(file) when missing, unreadable or over `limit` bytes.
std::string read_text_file(const std::filesystem::path& path, size_t limit = size_t{1} << 30);

/// With those it lies in. Throws Error(resource) when it cannot be made.
void create_folder(const std::filesystem::path& path);

}  // namespace tessera
