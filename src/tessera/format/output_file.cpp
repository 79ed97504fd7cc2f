#include "tessera/format/output_file.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::format {

OutputFile::OutputFile(std::filesystem::path path)
    : path_(std::move(path)), partial_(path_.string() + ".partial") {
  descriptor_ = ::open(partial_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor_ >= 0) return;
  const int error = errno;
  fail(ErrorKind::resource, "file", "{}: cannot create: {}", partial_.string(),
       std::strerror(error));
}

OutputFile::~OutputFile() {
  discard();
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)),
      partial_(std::exchange(other.partial_, {})),
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
  if (fsync(descriptor_) != 0) give_up("flush");
  // network file systems report a full disk here at the latest
  if (::close(std::exchange(descriptor_, -1)) != 0) give_up("close");
}

void OutputFile::commit() {
  finish();
  if (rename(partial_.c_str(), path_.c_str()) != 0) give_up("rename");
  partial_.clear();
}

void OutputFile::give_up(std::string_view step) {
  const int error = errno;
  discard();
  fail(ErrorKind::resource, "file", "{}: cannot {}: {}", path_.string(), step,
       std::strerror(error));
}

void OutputFile::discard() noexcept {
  if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
  if (!partial_.empty()) ::unlink(partial_.c_str());
  partial_.clear();
}

}  // namespace tessera::format
