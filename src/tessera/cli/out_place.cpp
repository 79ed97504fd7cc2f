#include "tessera/cli/out_place.h"

#include <algorithm>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/mapped_file.h"
#include "tessera/format/file_source.h"
#include "tessera/format/npy.h"
#include "tessera/format/safetensors.h"
#include "tessera/train/runs/run_folder.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

/// "config.json, model.safetensors and 3 more".
std::string listing_of(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  constexpr size_t kShown = 2;
  std::string out;
  for (size_t i = 0; i < std::min(kShown, names.size()); ++i) out += (i > 0 ? ", " : "") + names[i];
  if (names.size() > kShown) out += fmt::format(" and {} more", names.size() - kShown);
  return out;
}

}  // namespace

void add_force(CLI::App& app, bool& force) {
  app.add_flag("--force", force,
               "overwrite existing output: a file with content, or a folder with files");
}

void check_out_place(std::string_view verb, const fs::path& out, bool force, const IsOwn& own) {
  std::error_code error;
  const fs::file_status found = fs::status(out, error);
  if (force || out.empty()) return;
  if (fs::is_directory(found)) {
    const std::string held = listing_of(out);
    if (held.empty() || (own && own(out))) return;
    fail(ErrorKind::usage, std::string(verb),
         "{} holds {}; expected a new or empty folder, or --force to write into it", out.string(),
         held);
  }
  if (!fs::is_regular_file(found) || fs::file_size(out, error) == 0 || (own && own(out))) return;
  fail(ErrorKind::usage, std::string(verb),
       "{} is a file of {} bytes; expected a new name, or --force to write over it", out.string(),
       fs::file_size(out, error));
}

void check_gguf_place(std::string_view verb, const fs::path& out, int64_t part_mib, bool force) {
  check_out_place(verb, out, force);
  if (part_mib == 0) return;
  // how many there will be is not known yet
  const std::string stem = out.stem().string();
  const std::regex tail("-[0-9]{5}-of-[0-9]{5}\\.gguf");
  std::error_code error;
  const fs::path folder = out.has_parent_path() ? out.parent_path() : fs::path(".");
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(stem) && std::regex_match(name.substr(stem.size()), tail))
      check_out_place(verb, entry.path(), force);
  }
}

IsOwn holds_array(std::string tensor) {
  return [tensor = std::move(tensor)](const fs::path& path) {
    try {
      if (path.extension() == ".npy") return format::open_npy(path).data.data() != nullptr;
      return format::open_safetensors(path).find(tensor) != nullptr;
    } catch (const Error&) {
      return false;
    }
  };
}

IsOwn begins_with(std::string text) {
  return [text = std::move(text)](const fs::path& path) {
    if (!fs::is_regular_file(path)) return false;
    return format::text_of(MappedFile::open(path)->bytes()).starts_with(text);
  };
}

bool is_run_folder(const fs::path& out) {
  std::error_code error;
  return fs::exists(out / "lock", error) || !train::checkpoint_steps(out).empty();
}

}  // namespace tessera::cli
