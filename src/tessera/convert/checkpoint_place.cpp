#include "tessera/convert/checkpoint_place.h"

#include <fmt/format.h>

namespace tessera::convert {

namespace fs = std::filesystem;

fs::path checkpoint_place(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return path;
  // a folder that is a model itself
  for (const char* name : {"model.safetensors", "model.safetensors.index.json", "config.json"})
    if (fs::exists(path / name, ignored)) return path;
  for (const char* name : {"best", "latest"})
    if (fs::is_directory(path / name, ignored)) return path / name;
  return path;
}

std::string about_place(const fs::path& path) {
  const fs::path place = checkpoint_place(path);
  if (place == path) return "";
  std::error_code ignored;
  const fs::path step = fs::read_symlink(place, ignored).filename();
  const bool best = place.filename() == "best";
  return fmt::format("{}: its {} checkpoint{}{}", path.string(), best ? "best" : "newest",
                     step.empty() ? "" : ", " + step.string(),
                     best ? fmt::format(" (the newest is {})", (path / "latest").string()) : "");
}

}  // namespace tessera::convert
