// A file written piece by piece that appears whole or not at all: bytes go to a temporary file
// beside it (partial_path.h), which is flushed to disk and then renamed. Dropped before commit(),
// it leaves nothing behind. Several may write one path, in any threads and processes: each its own
// whole content, of which the last one stays.
//
// A path is written through, never replaced: a symbolic link stays and what it points to gets the
// content, and a device, a FIFO or a descriptor (/dev/stdout) receives the bytes as they come.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

#include "tessera/base/partial_path.h"

namespace tessera {

class OutputFile {
 public:
  /// Throws Error(resource) when nothing can be written there: a folder, a folder that is missing
  /// or read-only, links that go round. Waits for the reader of a FIFO.
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
  /// finish(), then the name.
  void commit();

 private:
  [[noreturn]] void give_up(std::string_view step);
  void discard() noexcept;

  std::filesystem::path path_;    // as given, for messages
  std::filesystem::path target_;  // what its links lead to
  PartialPath partial_;           // empty once renamed, and where bytes go to the target at once
  int descriptor_ = -1;
};

/// The whole file at once.
void write_file_atomically(const std::filesystem::path& path, std::string_view content);

}  // namespace tessera
