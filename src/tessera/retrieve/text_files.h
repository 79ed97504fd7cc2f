// The text files of folders. Torch-free.
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
  std::vector<Left> left_out;      // files that were named or found and hold no text
};

/// Files as they are, and those below folders but for hidden ones (a name that begins with a dot)
/// and links to folders. `names`: endings of a name, such as ".md"; none = all. Files with bytes
/// that are no UTF-8, or zeros, are left out, as are those over `limit` bytes; a file that is named
/// itself must exist. Throws Error(file) for paths that are not there.
TextFiles text_files(const std::vector<std::string>& paths,
                     const std::vector<std::string>& names = {},
                     size_t limit = size_t{64} << 20);

}  // namespace tessera::retrieve
