#include "tessera/hub/cache.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <set>
#include <sys/file.h>
#include <system_error>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/mapped_file.h"
#include "tessera/format/file_source.h"

namespace tessera::hub {
namespace {

namespace fs = std::filesystem;

constexpr const char* kCacheWhere = "model";
constexpr size_t kMostFiles = 100'000;
constexpr size_t kShortestCommit = 7;

std::string shown(const fs::path& path) {
  return format::printable(path.string());
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

fs::path home() {
  return environment("HOME").empty() ? fs::path("/") : fs::path(environment("HOME"));
}

/// "~/x" as a shell has it.
fs::path expanded(const std::string& text) {
  if (text == "~") return home();
  return text.starts_with("~/") ? home() / text.substr(2) : fs::path(text);
}

bool is_below(const fs::path& folder, const fs::path& path) {
  const auto [at, ignored] = std::mismatch(folder.begin(), folder.end(), path.begin(), path.end());
  return at == folder.end();
}

/// Entries of a folder, sorted; empty where it cannot be read.
std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    if (found.size() == kMostFiles)
      fail(ErrorKind::file, kCacheWhere, "{}: more than {} entries", shown(folder), kMostFiles);
    found.push_back(at->path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

bool is_plain_folder(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(fs::symlink_status(path, error));
}

/// The commit of refs/NAME; "" where there is none.
std::string commit_of_ref(const fs::path& folder, const std::string& revision) {
  const fs::path ref = folder / "refs" / revision;
  std::error_code error;
  if (!fs::is_regular_file(fs::symlink_status(ref, error))) return "";
  constexpr size_t kMost = 256;
  std::string commit = read_text_file(ref, kMost);
  while (!commit.empty() && std::isspace(static_cast<unsigned char>(commit.back())) != 0)
    commit.pop_back();
  if (!is_commit(commit))
    fail(ErrorKind::file, kCacheWhere, "{}: {}; expected a commit of 40 digits", shown(ref),
         format::in_quotes(commit));
  return commit;
}

/// Names below refs, with slashes.
void collect_refs(const fs::path& folder,
                  const std::string& prefix,
                  std::map<std::string, std::string>& commits,
                  const fs::path& repo) {
  for (const fs::path& entry : entries_of(folder)) {
    const std::string name = prefix + entry.filename().string();
    if (is_plain_folder(entry))
      collect_refs(entry, name + "/", commits, repo);
    else if (is_revision(name))
      commits[name] = commit_of_ref(repo, name);
  }
}

std::map<std::string, std::string> refs_of(const fs::path& repo) {
  std::map<std::string, std::string> commits;
  collect_refs(repo / "refs", "", commits, repo);
  std::erase_if(commits, [](const auto& ref) { return ref.second.empty(); });
  return commits;
}

std::vector<std::string> commits_of(const fs::path& repo) {
  std::vector<std::string> commits;
  for (const fs::path& entry : entries_of(repo / "snapshots"))
    if (is_commit(entry.filename().string()) && is_plain_folder(entry))
      commits.push_back(entry.filename().string());
  return commits;
}

std::string revisions_there(const fs::path& repo) {
  std::string out;
  for (const auto& [name, commit] : refs_of(repo)) out += (out.empty() ? "" : ", ") + name;
  for (const std::string& commit : commits_of(repo))
    out += (out.empty() ? "" : ", ") + commit.substr(0, 12);
  return out.empty() ? "none" : out;
}

std::string pull_command(const ModelName& name) {
  return fmt::format("`tessera pull {}{}`", name.repo,
                     name.revision == kMainRevision ? "" : " --revision " + name.revision);
}

/// The commit that a revision means among those that are there; "" = none.
std::string commit_of(const fs::path& repo, const std::string& revision) {
  const std::string commit = commit_of_ref(repo, revision);
  if (!commit.empty()) return commit;
  std::vector<std::string> found;
  if (revision.size() >= kShortestCommit)
    for (const std::string& one : commits_of(repo))
      if (one.starts_with(revision)) found.push_back(one);
  return found.size() == 1 ? found[0] : "";
}

/// Whether a download of one of its files is running.
bool is_locked(const fs::path& locks) {
  for (const fs::path& lock : entries_of(locks)) {
    const int descriptor = ::open(lock.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (descriptor < 0) continue;
    const bool free = flock(descriptor, LOCK_EX | LOCK_NB) == 0;
    ::close(descriptor);
    if (!free) return true;
  }
  return false;
}

/// What is to go, in the order in which it goes.
struct Going {
  std::vector<fs::path> refs, folders, blobs;
  bool whole = false;  // nothing of the model stays
};

/// The model's folder, held to be one of this cache's own.
fs::path own_folder(const fs::path& cache, const ModelName& name) {
  const fs::path folder = cache / name.folder();
  std::error_code error;
  if (!fs::exists(fs::symlink_status(folder, error)))
    fail(ErrorKind::file, "rm", "{}: not in the cache {}", name.repo, shown(cache));
  if (!is_plain_folder(folder))
    fail(ErrorKind::usage, "rm", "{}: is a link or a file; expected a folder of the cache",
         shown(folder));
  // what is removed lies here, not where a link leads
  for (const char* below : {"refs", "snapshots", "blobs", ".no_exist"})
    if (fs::exists(fs::symlink_status(folder / below, error)) && !is_plain_folder(folder / below))
      fail(ErrorKind::usage, "rm", "{}: is a link or a file; expected a folder of the cache",
           shown(folder / below));
  return folder;
}

Going going(const fs::path& cache, const ModelName& name, bool whole) {
  const fs::path folder = own_folder(cache, name);
  Going out;
  if (whole) {
    out.whole = true;
    out.refs = {folder / "refs"};
    for (const fs::path& snapshot : entries_of(folder / "snapshots"))
      out.folders.push_back(snapshot);
    out.blobs = entries_of(folder / "blobs");
    return out;
  }
  const std::string commit = commit_of(folder, name.revision);
  if (commit.empty() || !is_plain_folder(folder / "snapshots" / commit))
    fail(ErrorKind::file, "rm", "{}: no revision {} in the cache; there: {}", name.repo,
         name.revision, revisions_there(folder));
  // without its last revision nothing of a model can be used
  if (commits_of(folder).size() == 1) return going(cache, name, true);
  for (const auto& [ref, of] : refs_of(folder))
    if (of == commit) out.refs.push_back(folder / "refs" / ref);
  out.folders = {folder / "snapshots" / commit};
  if (is_plain_folder(folder / ".no_exist" / commit))
    out.folders.push_back(folder / ".no_exist" / commit);
  // blobs by what leads to them
  const auto used_by = [&](const std::string& one) {
    std::set<std::string> blobs;
    std::error_code error;
    for (fs::recursive_directory_iterator at(folder / "snapshots" / one, error), end;
         !error && at != end; at.increment(error))
      if (at->is_symlink(error))
        // a link that names no file leads to no blob
        if (const std::string name = fs::read_symlink(at->path(), error).filename();
            !name.empty() && name != "." && name != "..")
          blobs.insert(name);
    return blobs;
  };
  std::set<std::string> others;
  for (const std::string& other : commits_of(folder))
    if (other != commit) others.merge(used_by(other));
  for (const std::string& blob : used_by(commit)) {
    std::error_code error;
    const fs::path path = folder / "blobs" / blob;
    const fs::file_status status = fs::symlink_status(path, error);
    if (!others.count(blob) && (fs::is_regular_file(status) || fs::is_symlink(status)))
      out.blobs.push_back(path);
  }
  return out;
}

uint64_t bytes_of(const fs::path& path) {
  std::error_code error;
  const auto bytes = fs::file_size(path, error);
  return error ? 0 : static_cast<uint64_t>(bytes);
}

void remove_below(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) fail(ErrorKind::resource, "rm", "{}: cannot remove: {}", shown(path), error.message());
}

/// Files that lie in a snapshot themselves, as copied folders have them.
Removed own_files(const fs::path& snapshot) {
  Removed out;
  std::error_code error;
  for (fs::recursive_directory_iterator at(snapshot, error), end; !error && at != end;
       at.increment(error))
    if (fs::is_regular_file(at->symlink_status(error)))
      out.bytes += bytes_of(at->path()), ++out.files;
  return out;
}

Removed sum(const Going& going) {
  Removed out;
  for (const fs::path& blob : going.blobs) out.bytes += bytes_of(blob);
  out.files = going.blobs.size();
  for (const fs::path& snapshot : going.folders) {
    const Removed own = own_files(snapshot);
    out.bytes += own.bytes, out.files += own.files;
  }
  return out;
}

}  // namespace

fs::path home_folder() {
  if (const std::string value = environment("HF_HOME"); !value.empty()) return expanded(value);
  const std::string xdg = environment("XDG_CACHE_HOME");
  return (xdg.empty() ? home() / ".cache" : expanded(xdg)) / "huggingface";
}

fs::path cache_folder() {
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"})
    if (const std::string value = environment(name); !value.empty()) return expanded(value);
  return home_folder() / "hub";
}

std::vector<SnapshotFile> snapshot_files(const fs::path& cache, const fs::path& snapshot) {
  std::error_code error;
  const fs::path root = fs::canonical(cache, error);
  if (error) fail(ErrorKind::file, kCacheWhere, "{}: {}", shown(cache), error.message());
  std::vector<SnapshotFile> files;
  const auto refuse = [&](const fs::path& path, const std::string& what) {
    fail(ErrorKind::file, kCacheWhere, "{}: {}", shown(path), what);
  };
  fs::recursive_directory_iterator at(snapshot, error), end;
  for (; !error && at != end; at.increment(error)) {
    if (files.size() == kMostFiles) refuse(snapshot, fmt::format("more than {} files", kMostFiles));
    const fs::file_status status = at->symlink_status(error);
    if (fs::is_directory(status)) continue;
    SnapshotFile file;
    file.path = at->path().lexically_relative(snapshot).string();
    file.blob = fs::canonical(at->path(), error);
    if (error)
      refuse(at->path(),
             "its content is not in the cache (a link that leads nowhere); pull the "
             "model again");
    if (!is_below(root, file.blob))
      refuse(at->path(),
             fmt::format("leads to {}, outside of the cache {}", shown(file.blob), shown(root)));
    if (!fs::is_regular_file(file.blob, error))
      refuse(at->path(), "is no file; expected a link to a blob of the cache");
    file.bytes = bytes_of(file.blob);
    files.push_back(std::move(file));
  }
  if (error) refuse(snapshot, error.message());
  std::sort(files.begin(), files.end(),
            [](const SnapshotFile& a, const SnapshotFile& b) { return a.path < b.path; });
  return files;
}

fs::path snapshot_folder(const fs::path& cache, const ModelName& name) {
  const fs::path repo = cache / name.folder();
  std::error_code error;
  if (!fs::is_directory(repo, error))
    fail(ErrorKind::file, kCacheWhere,
         "{}: no file or folder of that name, and no model in the cache {}; {} downloads it",
         name.repo, shown(cache), pull_command(name));
  const std::string commit = commit_of(repo, name.revision);
  const fs::path snapshot = repo / "snapshots" / commit;
  if (commit.empty() || !is_plain_folder(snapshot))
    fail(ErrorKind::file, kCacheWhere,
         "{}: no revision {} in the cache; there: {}; {} downloads it", name.repo, name.revision,
         revisions_there(repo), pull_command(name));
  return snapshot;
}

std::vector<CachedModel> cached_models(const fs::path& cache) {
  std::vector<CachedModel> models;
  for (const fs::path& folder : entries_of(cache)) {
    const std::optional<std::string> repo = repo_of_folder(folder.filename().string());
    std::error_code error;
    if (!repo || !fs::is_directory(folder, error)) continue;
    CachedModel model{*repo, folder, {}, 0, 0};
    std::map<std::string, std::vector<std::string>> refs;
    try {
      for (const auto& [ref, commit] : refs_of(folder)) refs[commit].push_back(ref);
    } catch (const Error& broken) {
      model.damage = broken.what();
      refs.clear();
    }
    for (const std::string& commit : commits_of(folder)) {
      model.revisions.push_back({commit, refs[commit], folder / "snapshots" / commit});
      model.bytes += own_files(folder / "snapshots" / commit).bytes;
    }
    std::stable_partition(
        model.revisions.begin(), model.revisions.end(), [](const CachedRevision& one) {
          return std::find(one.refs.begin(), one.refs.end(), kMainRevision) != one.refs.end();
        });
    for (const fs::path& blob : entries_of(folder / "blobs"))
      (blob.extension() == ".incomplete" ? model.incomplete_bytes : model.bytes) += bytes_of(blob);
    models.push_back(std::move(model));
  }
  std::sort(models.begin(), models.end(),
            [](const CachedModel& a, const CachedModel& b) { return a.repo < b.repo; });
  return models;
}

Removed removable(const fs::path& cache, const ModelName& name, bool whole) {
  return sum(going(cache, name, whole));
}

Removed remove_model(const fs::path& cache, const ModelName& name, bool whole) {
  const Going gone = going(cache, name, whole);
  const Removed out = sum(gone);
  const fs::path locks = cache / ".locks" / name.folder();
  const bool own_locks = is_plain_folder(cache / ".locks") && is_plain_folder(locks);
  if (own_locks && is_locked(locks))
    fail(ErrorKind::resource, "rm", "{}: is being downloaded; stop that first", name.repo);
  for (const auto* paths : {&gone.refs, &gone.folders, &gone.blobs})
    for (const fs::path& path : *paths) remove_below(path);
  if (gone.whole) {
    remove_below(cache / name.folder());
    if (own_locks) remove_below(locks);
  }
  return out;
}

}  // namespace tessera::hub
