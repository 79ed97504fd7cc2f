// A file written piece by piece that appears whole or not at all: bytes go to `path`.partial, which
// is flushed to disk and then renamed. Dropped before commit(), it leaves nothing behind.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

namespace tessera::format {

class OutputFile {
 public:
  /// Throws Error(resource) when `path`.partial cannot be created.
  explicit OutputFile(std::filesystem::path path);
  ~OutputFile();
  OutputFile(OutputFile&& other) noexcept;
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  OutputFile& operator=(OutputFile&&) = delete;

  /// Throws Error(resource), e.g. when the disk is full.
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  void write_zeros(size_t count);

  /// Flushes to disk and closes: what is left for commit() cannot run out of space.
  void finish();
  /// finish(), then renames over `path`.
  void commit();

 private:
  [[noreturn]] void give_up(std::string_view step);
  void discard() noexcept;

  std::filesystem::path path_;
  std::filesystem::path partial_;  // empty once renamed
  int descriptor_ = -1;
};

}  // namespace tessera::format
