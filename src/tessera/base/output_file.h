// Atomic file writing: bytes go to a temporary file in the same folder (partial_path.h), which is
// flushed to disk and renamed. Destroyed before commit(), it leaves nothing. Several writers of one
// path, in any threads and processes, each write complete content; the last one stays.
//
// A path is written through, never replaced: a symbolic link stays and its target gets the content,
// and a device, a FIFO or a descriptor (/dev/stdout) receives the bytes directly.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

#include "tessera/base/partial_path.h"

namespace tessera {

class OutputFile {
 public:
  /// Throws Error(resource) if the path cannot be written: a folder, a missing or read-only folder,
  /// a loop of links. Waits for the reader of a FIFO.
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

  /// Flushes to disk and closes, so that commit() cannot run out of space.
  void finish();
  /// finish(), then renames.
  void commit();

 private:
  [[noreturn]] void give_up(std::string_view step);
  void discard() noexcept;

  std::filesystem::path path_;    // as given, for messages
  std::filesystem::path target_;  // the target of its links
  PartialPath partial_;           // empty once renamed, and for direct writes
  int descriptor_ = -1;
};

/// Writes a complete file.
void write_file_atomically(const std::filesystem::path& path, std::string_view content);

}  // namespace tessera
