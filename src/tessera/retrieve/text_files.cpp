#include "tessera/retrieve/text_files.h"

#include <algorithm>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/mapped_file.h"
#include "tessera/text/utf8.h"

namespace tessera::retrieve {
namespace {

namespace fs = std::filesystem;

bool is_hidden(const fs::path& path) {
  const std::string name = path.filename();
  return name.starts_with('.') && name != "." && name != "..";
}

/// "" for a text file, else the reason.
std::string no_text_reason(const fs::path& path, size_t limit) {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  if (error) return error.message();
  if (size > limit) return fmt::format("{} bytes; at most {}", size, limit);
  try {
    const std::string text = read_text_file(path, limit);
    if (text.find('\0') != std::string::npos || !text::is_valid_utf8(text)) return "no text";
  } catch (const Error& failed) {
    return failed.what();
  }
  return "";
}

}  // namespace

TextFiles text_files(const std::vector<std::string>& paths,
                     const std::vector<std::string>& names,
                     size_t limit) {
  TextFiles out;
  std::set<std::string> found;
  const auto wanted = [&](const fs::path& path) {
    const std::string name = path.filename();
    return names.empty() || std::any_of(names.begin(), names.end(), [&](const std::string& end) {
             return name.ends_with(end);
           });
  };
  for (const std::string& path : paths) {
    if (fs::is_directory(path)) {
      std::error_code error;
      fs::recursive_directory_iterator walk(path, fs::directory_options::skip_permission_denied,
                                            error);
      if (error) fail(ErrorKind::file, path, "{}", error.message());
      for (const auto end = fs::end(walk); walk != end; walk.increment(error)) {
        if (error) fail(ErrorKind::file, path, "{}", error.message());
        if (is_hidden(walk->path())) {
          if (walk->is_directory(error)) walk.disable_recursion_pending();
          continue;
        }
        if (walk->is_regular_file(error) && wanted(walk->path()))
          found.insert(walk->path().lexically_normal().string());
      }
    } else if (fs::is_regular_file(path)) {
      found.insert(fs::path(path).lexically_normal().string());
    } else {
      fail(ErrorKind::file, path, "not there; expected a text file or a folder of them");
    }
  }
  for (const std::string& path : found) {
    const std::string reason = no_text_reason(path, limit);
    if (reason.empty())
      out.paths.push_back(path);
    else
      out.left_out.push_back({path, reason});
  }
  return out;
}

}  // namespace tessera::retrieve
