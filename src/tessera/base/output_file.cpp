#include "tessera/base/output_file.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "tessera/base/error.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxLinks = 40;  // as Linux follows

/// The target of a path's links, which need not exist.
fs::path followed(fs::path path) {
  std::error_code error;
  for (int links = 0; fs::is_symlink(path, error); ++links) {
    if (links == kMaxLinks)
      fail(ErrorKind::resource, "file", "{}: symbolic links that go round", path.string());
    const fs::path to = fs::read_symlink(path, error);
    if (error)
      fail(ErrorKind::resource, "file", "{}: cannot follow: {}", path.string(), error.message());
    path = to.is_absolute() ? to : path.parent_path() / to;
  }
  return path;
}

/// True if a path names an open descriptor, which has its own position.
bool is_descriptor(const fs::path& path) {
  const std::string text = followed(path.parent_path()).string();
  return text.starts_with("/proc/") && text.ends_with("/fd");
}

}  // namespace

OutputFile::OutputFile(fs::path path) : path_(std::move(path)) {
  struct stat found {};
  const bool exists = ::stat(path_.c_str(), &found) == 0;
  if (exists && S_ISDIR(found.st_mode))
    fail(ErrorKind::resource, "file", "{}: is a folder; expected a file", path_.string());
  // the last link of a chain that leads to a descriptor names it
  fs::path last = path_;
  std::error_code error;
  for (int links = 0; links < kMaxLinks && fs::is_symlink(last, error) && !is_descriptor(last);
       ++links) {
    const fs::path to = fs::read_symlink(last, error);
    last = to.is_absolute() ? to : last.parent_path() / to;
  }
  const bool through = exists && (!S_ISREG(found.st_mode) || is_descriptor(last));
  if (through) {
    target_ = path_;
    descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CLOEXEC);
    if (descriptor_ < 0) give_up("open");
    return;
  }
  target_ = followed(path_);
  partial_ = PartialPath(target_, PartialPath::Kind::file);
  descriptor_ = partial_.open_again();
  if (descriptor_ < 0) give_up("open");
}

OutputFile::~OutputFile() {
  discard();
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)),
      target_(std::move(other.target_)),
      partial_(std::move(other.partial_)),
      descriptor_(std::exchange(other.descriptor_, -1)) {}

void OutputFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(descriptor_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) give_up("write");
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
}

void OutputFile::write_zeros(size_t count) {
  static constexpr std::array<std::byte, 4096> kZeros{};
  for (size_t n = 0; count > 0; count -= n) {
    n = std::min(count, kZeros.size());
    write(std::span(kZeros).first(n));
  }
}

void OutputFile::finish() {
  if (descriptor_ < 0) return;
  // devices and pipes have nothing to flush
  const bool flushes = !partial_.empty();
  if (fsync(descriptor_) != 0 && flushes) give_up("flush");
  // network file systems report a full disk here at the latest
  if (::close(std::exchange(descriptor_, -1)) != 0) give_up("close");
}

void OutputFile::commit() {
  finish();
  if (partial_.empty()) return;
  if (const int error = partial_.rename_to(target_); error != 0) {
    errno = error;
    give_up("rename");
  }
}

void OutputFile::give_up(std::string_view step) {
  const int error = errno;
  discard();
  fail(ErrorKind::resource, "file", "{}: cannot {}: {}", path_.string(), step,
       std::strerror(error));
}

void OutputFile::discard() noexcept {
  if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
  partial_.remove();
}

void write_file_atomically(const fs::path& path, std::string_view content) {
  OutputFile file(path);
  file.write(content);
  file.commit();
}

}  // namespace tessera
