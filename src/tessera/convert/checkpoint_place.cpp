#include "tessera/convert/checkpoint_place.h"

#include <fmt/format.h>

#include "tessera/base/mapped_file.h"
#include "tessera/format/file_source.h"
#include "tessera/format/tensor_folder.h"
#include "tessera/format/torch_file.h"

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

fs::path model_folder(const fs::path& path) {
  const fs::path place = checkpoint_place(path);
  std::error_code ignored;
  const fs::path folder = place.has_parent_path() ? place.parent_path() : fs::path(".");
  if (!fs::is_regular_file(place, ignored) || !fs::exists(folder / "config.json", ignored))
    return place;
  const auto file = MappedFile::open(place);
  const std::string_view text = format::text_of(file->bytes());
  return format::begins_as_torch(text) || format::begins_as_safetensors(text) ? folder : place;
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
