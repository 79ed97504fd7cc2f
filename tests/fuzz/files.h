// For parsers that open files themselves: a folder that goes with the program.
#pragma once

#include <filesystem>
#include <fstream>
#include <stdlib.h>
#include <string>

#include "fuzz.h"

namespace tessera::fuzz {

class Folder {
 public:
  Folder() {
    // in memory where there is such a place: an input is a file or more
    const std::filesystem::path memory = "/dev/shm";
    std::error_code error;
    const auto parent = std::filesystem::is_directory(memory, error)
                            ? memory
                            : std::filesystem::temp_directory_path();
    std::string pattern = (parent / "tessera-fuzz-XXXXXX").string();
    check(mkdtemp(pattern.data()) != nullptr, "there is room for files: " + pattern);
    path_ = pattern;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  /// Writes a file, and the folders it lies in, and returns where it is.
  std::filesystem::path put(const std::string& name, std::string_view content) const {
    const std::filesystem::path file = path_ / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary)
        .write(content.data(), static_cast<std::streamsize>(content.size()));
    return file;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace tessera::fuzz
