#include "tessera/base/mapped_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "tessera/base/error.h"

namespace tessera {
namespace {

// Lock-free table of live mappings, because the signal handler reads it.
struct Range {
  std::atomic<uintptr_t> begin{0};
  std::atomic<uintptr_t> end{0};
};
std::array<Range, 1024> g_ranges;

void remember(uintptr_t begin, uintptr_t end) {
  for (Range& range : g_ranges) {
    uintptr_t free = 0;
    if (range.begin.compare_exchange_strong(free, begin)) {
      range.end = end;
      return;
    }
  }
}

void forget(uintptr_t begin) {
  for (Range& range : g_ranges)
    if (range.begin == begin) {
      range.end = 0;
      range.begin = 0;
      return;
    }
}

void on_bus_error(int, siginfo_t* info, void*) {
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  for (const Range& range : g_ranges)
    if (address >= range.begin && address < range.end) {
      constexpr char kMessage[] =
          "tessera: [file] a mapped file became shorter while it was read; restore it and run "
          "again\n";
      if (write(STDERR_FILENO, kMessage, sizeof(kMessage) - 1) < 0) _exit(1);
      _exit(1);
    }
  signal(SIGBUS, SIG_DFL);
  raise(SIGBUS);
}

class FileDescriptor {
 public:
  FileDescriptor(const std::filesystem::path& path, int flags, mode_t mode = 0)
      : fd_(::open(path.c_str(), flags | O_CLOEXEC, mode)) {}
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

std::shared_ptr<const MappedFile> MappedFile::open(const std::filesystem::path& path) {
  const FileDescriptor file(path, O_RDONLY | O_NONBLOCK);  // a pipe must not make this wait
  if (file.get() < 0) fail(ErrorKind::file, "file", "{}: {}", path.string(), std::strerror(errno));
  struct stat status {};
  if (fstat(file.get(), &status) != 0)
    fail(ErrorKind::file, "file", "{}: {}", path.string(), std::strerror(errno));
  if (!S_ISREG(status.st_mode))
    fail(ErrorKind::file, "file", "{}: {}; expected a regular file", path.string(),
         S_ISDIR(status.st_mode)    ? "a folder"
         : S_ISFIFO(status.st_mode) ? "a pipe"
                                    : "a device");
  const auto size = static_cast<size_t>(status.st_size);
  const std::byte* data = nullptr;
  if (size > 0) {
    void* address = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
    if (address == MAP_FAILED)
      fail(ErrorKind::resource, "file", "{}: cannot map {} bytes: {}", path.string(), size,
           std::strerror(errno));
    data = static_cast<const std::byte*>(address);
  }
  return std::shared_ptr<const MappedFile>(new MappedFile(path, data, size));
}

MappedFile::MappedFile(std::filesystem::path path, const std::byte* data, size_t size)
    : path_(std::move(path)), data_(data), size_(size) {
  if (data_ != nullptr)
    remember(reinterpret_cast<uintptr_t>(data_), reinterpret_cast<uintptr_t>(data_) + size_);
}

MappedFile::~MappedFile() {
  if (data_ == nullptr) return;
  forget(reinterpret_cast<uintptr_t>(data_));
  munmap(const_cast<std::byte*>(data_), size_);
}

void install_truncation_guard() {
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGBUS, &action, nullptr);
}

bool is_mapped(std::span<const std::byte> bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(bytes.data()), end = begin + bytes.size();
  return std::any_of(g_ranges.begin(), g_ranges.end(), [&](const Range& range) {
    return range.begin != 0 && begin >= range.begin && end <= range.end;
  });
}

size_t release_pages(std::span<const std::byte> bytes) {
  if (!is_mapped(bytes)) return 0;
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<uintptr_t>(bytes.data()) + page - 1) / page * page,
             end = reinterpret_cast<uintptr_t>(bytes.data() + bytes.size()) / page * page;
  if (end <= begin) return 0;
  // read-only and private: nothing is lost
  return madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED) == 0 ? end - begin : 0;
}

std::string read_text_file(const std::filesystem::path& path, size_t limit) {
  const auto file = MappedFile::open(path);
  const auto bytes = file->bytes();
  if (bytes.size() > limit)
    fail(ErrorKind::file, "file", "{}: {} bytes; at most {} are read here", path.string(),
         bytes.size(), limit);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void create_folder(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error)
    fail(ErrorKind::resource, "file", "{}: cannot create the folder: {}", path.string(),
         error.message());
}

}  // namespace tessera
