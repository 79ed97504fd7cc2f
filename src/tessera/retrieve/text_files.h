// Finds text files in folders. Torch-free.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace tessera::retrieve {

struct TextFiles {
  struct Left {
    std::string path, reason;
  };
  std::vector<std::string> paths;  // sorted
  std::vector<Left> left_out;      // named or found files that are not text
};

/// Named files, and files below named folders without hidden ones (names that begin with a dot) and
/// links to folders. `names`: file name endings such as ".md"; none = all. Files that are not
/// UTF-8, contain zero bytes or exceed `limit` bytes are left out; a file that is named itself must
/// exist. Throws Error(file) for missing paths.
TextFiles text_files(const std::vector<std::string>& paths,
                     const std::vector<std::string>& names = {},
                     size_t limit = size_t{64} << 20);

}  // namespace tessera::retrieve
