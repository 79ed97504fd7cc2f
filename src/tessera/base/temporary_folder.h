// A new folder for temporary files.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

#include <stdlib.h>

#include "tessera/base/error.h"

namespace tessera {

/// Removed with its contents on destruction.
class TemporaryFolder {
 public:
  /// In `parent`; by default where the system has temporary files. Throws Error(resource), which
  /// expects a writable folder, given by `option`.
  explicit TemporaryFolder(std::filesystem::path parent = {},
                           const std::string& option = "TMPDIR") {
    if (parent.empty()) parent = std::filesystem::temp_directory_path();
    std::string pattern = (parent / "tessera-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr)
      fail(ErrorKind::resource, "folder",
           "cannot make a temporary folder {}; expected {}, a writable folder", pattern, option);
    path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace tessera
