#include "tessera/base/text_input.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "tessera/base/error.h"
#include "tessera/base/mapped_file.h"

namespace tessera {
namespace {

constexpr int kPollMilliseconds = 100;  // maximum delay of a cancellation

struct Descriptor {
  explicit Descriptor(int number) : fd(number) {}
  ~Descriptor() {
    if (fd > STDIN_FILENO) ::close(fd);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  const int fd;
};

}  // namespace

std::string read_text_input(const std::filesystem::path& path,
                            const CancelToken* cancel,
                            size_t limit) {
  const bool standard = path == "-";
  const std::string name = standard ? "standard input" : path.string();
  const auto refuse = [&](int error) {
    fail(ErrorKind::file, "file", "{}: {}; expected a text to read", name, std::strerror(error));
  };
  // opened without waiting for a writer: poll waits below, and can be cancelled
  const Descriptor file(standard ? STDIN_FILENO
                                 : ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (file.fd < 0) refuse(errno);
  struct stat status {};
  if (fstat(file.fd, &status) != 0) refuse(errno);
  if (S_ISDIR(status.st_mode)) refuse(EISDIR);
  if (!standard && S_ISREG(status.st_mode)) return read_text_file(path, limit);
  std::string text;
  std::array<char, 1 << 16> buffer;
  while (true) {
    if (cancel != nullptr) cancel->check("file");
    pollfd waiting{file.fd, POLLIN, 0};
    const int ready = ::poll(&waiting, 1, kPollMilliseconds);
    if (ready < 0 && errno != EINTR) refuse(errno);
    if (ready <= 0) continue;
    const ssize_t n = ::read(file.fd, buffer.data(), buffer.size());
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n < 0) refuse(errno);
    if (n == 0) return text;
    text.append(buffer.data(), static_cast<size_t>(n));
    if (text.size() > limit)
      fail(ErrorKind::file, "file", "{}: more than {} bytes; at most so many are read here", name,
           limit);
  }
}

}  // namespace tessera
