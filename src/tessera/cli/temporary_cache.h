// A temporary folder for cached tokens.
#pragma once

#include <filesystem>

#include <fmt/format.h>
#include <unistd.h>

#include "tessera/base/mapped_file.h"

namespace tessera::cli {

/// Removed with its contents on destruction.
class TemporaryCache {
 public:
  TemporaryCache()
      : path_(std::filesystem::temp_directory_path() / fmt::format("tessera-data-{}", getpid())) {
    create_folder(path_);
  }
  ~TemporaryCache() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryCache(const TemporaryCache&) = delete;
  TemporaryCache& operator=(const TemporaryCache&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace tessera::cli
