#include "tessera/base/resident.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace tessera {

int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

namespace {

/// True if the file of a mapping is code: an executable or a shared library (libx.so.1).
bool is_program(const std::string& path) {
  static const std::string executable = [] {
    std::error_code error;
    return std::filesystem::read_symlink("/proc/self/exe", error).string();
  }();
  const std::string name = path.substr(path.rfind('/') + 1);
  return path == executable || name.find(".so.") != std::string::npos || name.ends_with(".so");
}

}  // namespace

ResidentParts resident_parts() {
  // a mapping's first line, "7f00-7f01 r--p 00000000 fe:00 42   /path", then "Rss:   4 kB" and more
  std::ifstream file("/proc/self/smaps");
  ResidentParts parts;
  int64_t* part = &parts.anonymous;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("Rss:")) {
      *part += std::strtoll(line.c_str() + 4, nullptr, 10) << 10;
    } else if (line.starts_with("Anonymous:")) {
      // pages of a private mapping that were written to are no longer the file's
      const int64_t own =
          part == &parts.anonymous ? 0 : std::strtoll(line.c_str() + 10, nullptr, 10) << 10;
      *part -= own;
      parts.anonymous += own;
    } else if (const size_t dash = line.find('-'); dash < line.find(' ')) {
      const size_t path = line.find('/');
      part = path == std::string::npos       ? &parts.anonymous
             : is_program(line.substr(path)) ? &parts.program
                                             : &parts.files;
    }
  }
  return parts;
}

}  // namespace tessera
