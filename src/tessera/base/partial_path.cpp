#include "tessera/base/partial_path.h"

#include <atomic>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include "tessera/base/error.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSuffix = ".partial";
constexpr size_t kMostName = 200;  // bytes of the target's, of the 255 that a name may have

fs::path fresh_name(const fs::path& target) {
  static std::atomic<uint64_t> next{0};
  const std::string name = target.filename().string().substr(0, kMostName);
  return target.parent_path() / fmt::format("{}.{}-{}{}", name, ::getpid(), next++, kSuffix);
}

/// "NAME.<digits>-<digits>.partial".
bool is_partial_name(std::string_view name) {
  constexpr std::string_view kDigits = "0123456789";
  if (!name.ends_with(kSuffix)) return false;
  name.remove_suffix(kSuffix.size());
  for (const char before : {'-', '.'}) {
    const size_t digits = name.find_last_not_of(kDigits) + 1;
    if (digits == name.size() || digits == 0 || name[digits - 1] != before) return false;
    name.remove_suffix(name.size() - digits + 1);
  }
  return !name.empty();
}

int open_partial(const fs::path& path, PartialPath::Kind kind) {
  if (kind == PartialPath::Kind::file)
    return ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (::mkdir(path.c_str(), 0755) != 0) return -1;
  return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

/// True if a path still refers to the open file: between creation and lock another process may have
/// removed it as a leftover.
bool names(const fs::path& path, int descriptor) {
  struct stat named {
  }, open{};
  return ::stat(path.c_str(), &named) == 0 && ::fstat(descriptor, &open) == 0 &&
         named.st_ino == open.st_ino && named.st_dev == open.st_dev;
}

/// Once for each folder of a process.
void tidy_once(const fs::path& parent) {
  const fs::path folder = parent.empty() ? fs::path(".") : parent;
  static std::mutex mutex;
  static std::set<std::string> tidied;
  constexpr size_t kMostFolders = 4096;
  {
    const std::lock_guard lock(mutex);
    if (tidied.size() >= kMostFolders) tidied.clear();
    if (!tidied.insert(fs::absolute(folder).string()).second) return;
  }
  remove_leftovers(folder);
}

}  // namespace

PartialPath::PartialPath(const fs::path& target, Kind kind) {
  tidy_once(target.parent_path());
  for (;;) {
    fs::path path = fresh_name(target);
    const int descriptor = open_partial(path, kind);
    if (descriptor < 0 && errno == EEXIST) continue;  // of a process in another namespace
    if (descriptor < 0)
      fail(ErrorKind::resource, "file", "{}: cannot create: {}", target.string(),
           errno == ENOENT ? "there is no folder " + target.parent_path().string()
                           : std::strerror(errno));
    path_ = std::move(path);
    descriptor_ = descriptor;
    // a file system without locks has no leftovers removed either
    flock(descriptor_, LOCK_EX | LOCK_NB);
    if (names(path_, descriptor_)) return;
    release();
    path_.clear();
  }
}

PartialPath::~PartialPath() {
  remove();
}

PartialPath::PartialPath(PartialPath&& other) noexcept
    : path_(std::exchange(other.path_, {})), descriptor_(std::exchange(other.descriptor_, -1)) {}

PartialPath& PartialPath::operator=(PartialPath&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

int PartialPath::open_again() const {
  return fcntl(descriptor_, F_DUPFD_CLOEXEC, 0);
}

int PartialPath::rename_to(const fs::path& target) noexcept {
  if (::rename(path_.c_str(), target.c_str()) != 0) return errno;
  path_.clear();
  release();
  return 0;
}

void PartialPath::remove() noexcept {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
  path_.clear();
  release();
}

void PartialPath::release() noexcept {
  if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
}

void remove_leftovers(const fs::path& folder) noexcept {
  try {
    std::error_code error;
    std::vector<fs::path> found;
    const fs::path listed = folder.empty() ? fs::path(".") : folder;
    for (fs::directory_iterator at(listed, error), end; !error && at != end; at.increment(error))
      if (is_partial_name(at->path().filename().string())) found.push_back(at->path());
    for (const fs::path& path : found) {
      struct stat info {};
      if (::lstat(path.c_str(), &info) != 0 || !(S_ISREG(info.st_mode) || S_ISDIR(info.st_mode)))
        continue;
      const int descriptor = ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
      if (descriptor < 0) continue;
      if (flock(descriptor, LOCK_EX | LOCK_NB) == 0 && names(path, descriptor))
        fs::remove_all(path, error);
      ::close(descriptor);
    }
  } catch (...) {
    // leftovers only take space
  }
}

}  // namespace tessera
