#include "tessera/hub/find_model.h"

#include <algorithm>
#include <array>

#include "tessera/base/error.h"
#include "tessera/format/file_source.h"
#include "tessera/hub/cache.h"
#include "tessera/hub/gguf_files.h"

namespace tessera::hub {
namespace {

namespace fs = std::filesystem;

constexpr const char* kNameWhere = "model";

std::string printed(const std::string& text) {
  return format::printable(text);
}

/// Endings of files, not of repositories: then the message is of a missing file.
bool is_file_name(std::string_view text) {
  constexpr std::array<std::string_view, 11> kEndings = {".gguf", ".safetensors", ".json", ".jsonl",
                                                         ".bin",  ".pt",          ".pth",  ".ckpt",
                                                         ".txt",  ".model",       ".npz"};
  return std::any_of(kEndings.begin(), kEndings.end(),
                     [&](std::string_view ending) { return text.ends_with(ending); });
}

std::string listed(const std::vector<std::string>& paths) {
  constexpr size_t kMost = 8;
  std::string out;
  for (size_t i = 0; i < std::min(kMost, paths.size()); ++i)
    out += (i > 0 ? ", " : "") + printed(paths[i]);
  return out.empty() ? "nothing" : paths.size() > kMost ? out + ", ..." : out;
}

fs::path file_of(const fs::path& folder, const GgufModel& model, const std::string& name) {
  if (model.parts.size() != model.expected_parts)
    fail(ErrorKind::file, kNameWhere, "{}: {} of {} parts of {} are there; pull it again", name,
         model.parts.size(), model.expected_parts, printed(model.parts.front()));
  return folder / model.parts.front();
}

fs::path chosen(const fs::path& folder,
                const std::vector<std::string>& paths,
                const std::string& selection,
                const std::string& name) {
  const std::vector<GgufModel> models = gguf_models(paths);
  if (selection.empty()) {
    const bool is_folder = std::any_of(paths.begin(), paths.end(), makes_folder_a_model);
    if (is_folder || models.empty()) return folder;
    if (models.size() == 1) return file_of(folder, models[0], name);
    fail(ErrorKind::file, kNameWhere, "{} has {} GGUF files; expected one of {}", name,
         models.size(), printed(choices(name, models)));
  }
  const auto below = [&](const std::string& path) {
    return path == selection || path.starts_with(selection + "/");
  };
  if (std::any_of(paths.begin(), paths.end(), below)) {
    // a folder of parts is the model
    const std::vector<GgufModel> fits = of_quantization(models, selection);
    const bool is_file = std::find(paths.begin(), paths.end(), selection) != paths.end();
    if (is_file || fits.empty()) return folder / selection;
  }
  const std::vector<GgufModel> fits = of_quantization(models, selection);
  if (fits.size() == 1) return file_of(folder, fits[0], name);
  if (fits.size() > 1)
    fail(ErrorKind::file, kNameWhere, "{}:{} means {} files; expected one of {}", name,
         printed(selection), fits.size(), printed(choices(name, fits)));
  fail(ErrorKind::file, kNameWhere, "{} has no file and no quantization {}; there: {}", name,
       format::in_quotes(selection), models.empty() ? listed(paths) : choices(name, models));
}

std::vector<std::string> paths_of(const std::vector<SnapshotFile>& files) {
  std::vector<std::string> paths;
  for (const SnapshotFile& file : files) paths.push_back(file.path);
  return paths;
}

FoundModel in_cache(const fs::path& cache, const ModelName& name) {
  const fs::path snapshot = snapshot_folder(cache, name);
  const std::vector<std::string> paths = paths_of(snapshot_files(cache, snapshot));
  ModelName named = name;
  named.selection.clear();
  return {chosen(snapshot, paths, name.selection, named.text()).string(), name.text()};
}

/// The files of a folder that is none of the cache.
std::vector<std::string> files_below(const fs::path& folder) {
  constexpr size_t kMost = 100'000;
  std::vector<std::string> paths;
  std::error_code error;
  for (fs::recursive_directory_iterator at(folder, error), end;
       !error && at != end && paths.size() < kMost; at.increment(error))
    if (at->is_regular_file(error)) paths.push_back(at->path().lexically_relative(folder).string());
  std::sort(paths.begin(), paths.end());
  return paths;
}

/// "models--org--name" as a path: the cache is the folder that it lies in.
std::optional<std::pair<fs::path, ModelName>> as_cache_folder(const std::string& text) {
  fs::path path = fs::path(text).lexically_normal();
  if (path.filename().empty()) path = path.parent_path();
  std::error_code error;
  const auto repo = repo_of_folder(path.filename().string());
  if (!repo || !fs::is_directory(path / "snapshots", error)) return std::nullopt;
  const fs::path parent = path.parent_path();
  return std::pair(parent.empty() ? fs::path(".") : parent, ModelName{*repo});
}

}  // namespace

FoundModel find_model(const std::string& text, const fs::path& cache) {
  std::error_code error;
  if (fs::exists(text, error)) {
    if (const auto folder = as_cache_folder(text)) return in_cache(folder->first, folder->second);
    return {text, ""};
  }
  const size_t colon = text.rfind(':');
  const std::string before = text.substr(0, colon);
  if (colon != text.npos && colon > 0 && is_safe_path(text.substr(colon + 1)) &&
      fs::is_directory(before, error)) {
    const std::string selection = text.substr(colon + 1);
    if (auto folder = as_cache_folder(before)) {
      folder->second.selection = selection;
      return in_cache(folder->first, folder->second);
    }
    return {chosen(before, files_below(before), selection, before).string(), ""};
  }
  const std::optional<ModelName> name = parse_model_name(text);
  if (!name) return {text, ""};
  // before the cache is looked at: a file of ours that is missing stays a missing file
  if (is_file_name(name->repo) && !fs::exists(cache / name->folder(), error)) return {text, ""};
  return in_cache(cache, *name);
}

FoundModel find_model(const std::string& text) {
  return find_model(text, cache_folder());
}

bool makes_folder_a_model(const std::string& path) {
  return path.find('/') == path.npos &&
         (path.ends_with(".safetensors") || path.ends_with(".bin") || path.ends_with(".pt") ||
          path.ends_with(".pth") || path == "adapter_config.json");
}

bool is_cached(const std::string& text) {
  const std::optional<ModelName> name = parse_model_name(text);
  std::error_code error;
  return name && fs::is_directory(cache_folder() / name->folder(), error);
}

}  // namespace tessera::hub
