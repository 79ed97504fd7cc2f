#include "tessera/train/runs/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>

#include "tessera/base/error.h"
#include "tessera/base/mapped_file.h"
#include "tessera/base/output_file.h"
#include "tessera/spec/json.h"
#include "tessera/base/sha256.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;
using spec::Json;

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kPartial = ".partial";

/// Renames inside a folder are on disk only when the folder is.
void flush_folder(const fs::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0)
    fail(ErrorKind::resource, "checkpoint", "{}: {}", folder.string(), std::strerror(errno));
  const int result = fsync(fd), error = errno;
  ::close(fd);
  // some file systems cannot flush a folder, and need not
  if (result != 0 && error != EINVAL)
    fail(ErrorKind::resource, "checkpoint", "{}: cannot flush: {}", folder.string(),
         std::strerror(error));
}

std::optional<int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  int64_t step = 0;
  const char* end = name.data() + name.size();
  const auto [rest, error] = std::from_chars(name.data() + kPrefix.size(), end, step);
  if (error != std::errc{} || rest != end || step < 0) return std::nullopt;
  return step;
}

void point(const fs::path& run, const char* name, const fs::path& target) {
  const fs::path link = run / name, temporary = run / (std::string(name) + std::string(kPartial));
  std::error_code error;
  fs::remove(temporary, error);
  fs::create_directory_symlink(target.filename(), temporary, error);
  if (!error) fs::rename(temporary, link, error);
  if (error) fail(ErrorKind::resource, "checkpoint", "{}: {}", link.string(), error.message());
}

/// A checkpoint that is half removed has no longer its name.
void discard(const fs::path& checkpoint) {
  const fs::path going = checkpoint.string() + ".old" + std::string(kPartial);
  std::error_code error;
  fs::remove_all(going, error);
  fs::rename(checkpoint, going, error);
  if (!error) fs::remove_all(going, error);
}

}  // namespace

RunLock::RunLock(const fs::path& folder) {
  for (fs::path at = fs::absolute(folder).lexically_normal(); !fs::exists(at);
       at = at.parent_path())
    if (at.has_filename()) made_.push_back(at);
  create_folder(folder);
  const fs::path path = folder / "lock";
  descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (descriptor_ < 0)
    fail(ErrorKind::resource, "train", "{}: {}", path.string(), std::strerror(errno));
  if (flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
    char text[32] = {};
    const ssize_t n = pread(descriptor_, text, sizeof(text) - 1, 0);
    ::close(descriptor_);
    fail(ErrorKind::resource, "train",
         "{}: another trainer{} works in this folder; wait for it, or choose another folder",
         folder.string(),
         n > 0 ? fmt::format(" (process {})", std::string_view(text, static_cast<size_t>(n)))
               : std::string());
  }
  const std::string pid = fmt::format("{}", getpid());
  if (ftruncate(descriptor_, 0) != 0 || pwrite(descriptor_, pid.data(), pid.size(), 0) < 0) {
    // the number is a courtesy: without it the lock holds all the same
  }
}

RunLock::~RunLock() {
  std::error_code error;
  if (!made_.empty()) fs::remove_all(made_.front(), error);
  for (size_t i = 1; i < made_.size(); ++i) fs::remove(made_[i], error);  // empty ones alone
  if (descriptor_ >= 0) ::close(descriptor_);
}

bool is_held(const fs::path& folder) {
  struct stat found {};
  if (::stat((folder / "lock").c_str(), &found) != 0) return false;
  std::string holder;  // that wrote its number last, see RunLock
  std::ifstream(folder / "lock") >> holder;
  // "1: FLOCK  ADVISORY  WRITE 4711 fd:00:131 0 EOF": process, device and file
  std::ifstream locks("/proc/locks");
  const std::string file = fmt::format(":{}", found.st_ino);
  for (std::string line; std::getline(locks, line);) {
    std::istringstream words(line);
    std::string number, kind, advisory, mode, process, where;
    if (words >> number >> kind >> advisory >> mode >> process >> where && kind == "FLOCK" &&
        mode == "WRITE" && process == holder && where.ends_with(file))
      return true;
  }
  return false;
}

fs::path checkpoint_folder(const fs::path& run, int64_t step) {
  return run / fmt::format("{}{}", kPrefix, step);
}

std::vector<int64_t> checkpoint_steps(const fs::path& run) {
  std::vector<int64_t> steps;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(run, error))
    if (const auto step = step_of(entry.path().filename().string());
        step && entry.is_directory(error))
      steps.push_back(*step);
  std::sort(steps.begin(), steps.end());
  return steps;
}

PendingCheckpoint::PendingCheckpoint(fs::path run, int64_t step)
    : run_(std::move(run)),
      partial_(checkpoint_folder(run_, step).string() + std::string(kPartial)),
      step_(step) {
  std::error_code error;
  fs::remove_all(partial_, error);
  fs::create_directory(partial_, error);
  if (error)
    fail(ErrorKind::resource, "checkpoint", "{}: cannot create: {}", partial_.string(),
         error.message());
}

PendingCheckpoint::~PendingCheckpoint() {
  std::error_code ignored;
  if (!partial_.empty()) fs::remove_all(partial_, ignored);
}

fs::path PendingCheckpoint::commit(int64_t keep, const std::vector<int64_t>& best) {
  // the files, then their list, then the name
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(partial_))
    if (entry.is_regular_file()) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  Json manifest = {{"version", 1}, {"files", Json::array()}};
  for (const fs::path& file : files)
    manifest["files"].push_back({{"name", file.lexically_relative(partial_).generic_string()},
                                 {"bytes", fs::file_size(file)},
                                 {"sha256", sha256_file(file)}});
  write_file_atomically(partial_ / "manifest.json", manifest.dump(2) + "\n");
  flush_folder(partial_);

  const fs::path done = checkpoint_folder(run_, step_);
  std::error_code error;
  if (fs::exists(done)) discard(done);
  fs::rename(partial_, done, error);
  if (error)
    fail(ErrorKind::resource, "checkpoint", "{}: cannot rename: {}", done.string(),
         error.message());
  partial_.clear();
  tidy_checkpoints(run_, keep, best);
  return done;
}

void tidy_checkpoints(const fs::path& run, int64_t keep, const std::vector<int64_t>& best) {
  const auto steps = checkpoint_steps(run);
  const auto link = [&](const char* name, int64_t step) {
    const fs::path to = checkpoint_folder(run, step);
    std::error_code error;
    if (fs::read_symlink(run / name, error) != to.filename()) point(run, name, to);
  };
  if (!steps.empty()) link("latest", steps.back());
  if (!best.empty() && std::find(steps.begin(), steps.end(), best.front()) != steps.end())
    link("best", best.front());
  flush_folder(run);
  for (size_t i = 0; keep > 0 && i + static_cast<size_t>(keep) < steps.size(); ++i)
    if (std::find(best.begin(), best.end(), steps[i]) == best.end())
      discard(checkpoint_folder(run, steps[i]));
}

void verify_checkpoint(const fs::path& checkpoint) {
  const fs::path path = checkpoint / "manifest.json";
  const Json manifest = spec::read_json_file(path);
  const auto damaged = [&](const fs::path& file, const std::string& what) {
    fail(ErrorKind::file, "checkpoint", "{}: {}; remove {} to continue from an older checkpoint",
         file.string(), what, checkpoint.string());
  };
  const auto files = manifest.is_object() ? manifest.find("files") : manifest.end();
  if (files == manifest.end() || !files->is_array()) damaged(path, "no list of files");
  if (const Json version = manifest.value("version", Json()); version != Json(1))
    fail(ErrorKind::file, "checkpoint", "{}: version {}; this program reads version 1",
         path.string(), version.dump());
  for (const Json& entry : *files) {
    if (!entry.is_object() || !entry.contains("name") || !entry["name"].is_string() ||
        !entry.contains("bytes") || !entry["bytes"].is_number_unsigned() ||
        !entry.contains("sha256") || !entry["sha256"].is_string())
      damaged(path, "an entry without name, bytes or sha256");
    const fs::path name = entry["name"].get<std::string>();
    if (name.empty() || name.is_absolute() || name.lexically_normal() != name ||
        *name.begin() == "..")
      damaged(path, fmt::format("file name \"{}\" leaves the folder", name.string()));
    const fs::path file = checkpoint / name;
    std::error_code error;
    const auto bytes = fs::file_size(file, error);
    if (error) damaged(file, error.message());
    if (bytes != entry["bytes"].get<uint64_t>())
      damaged(file,
              fmt::format("{} bytes; the manifest says {}", bytes, entry["bytes"].get<uint64_t>()));
    if (sha256_file(file) != entry["sha256"].get<std::string>())
      damaged(file, "its SHA-256 differs from the manifest's: the file is corrupt");
  }
}

void remove_partial_checkpoints(const fs::path& run) {
  std::error_code error;
  std::vector<fs::path> partial;
  for (const auto& entry : fs::directory_iterator(run, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kPrefix) && name.ends_with(kPartial) && entry.is_directory(error))
      partial.push_back(entry.path());
  }
  for (const fs::path& folder : partial) fs::remove_all(folder, error);
}

}  // namespace tessera::train
