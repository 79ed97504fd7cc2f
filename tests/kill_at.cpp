// Loaded into a program (LD_PRELOAD) that is to be killed at a given moment: before its
// TESSERA_KILL_AT-th change to files it dies as by kill -9, where that is a write after half of it.
#include <dlfcn.h>
#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>

namespace {

template <class F>
F next(const char* name) {
  return reinterpret_cast<F>(dlsym(RTLD_NEXT, name));
}

bool is_due() {
  static std::atomic<long> done{0};
  static const long when = [] {
    const char* text = std::getenv("TESSERA_KILL_AT");
    return text == nullptr ? 0 : std::atol(text);
  }();
  return when > 0 && ++done == when;
}

void die_if_due() {
  if (is_due()) kill(getpid(), SIGKILL);
}

}  // namespace

extern "C" {

ssize_t write(int descriptor, const void* data, size_t size) {
  static const auto real = next<ssize_t (*)(int, const void*, size_t)>("write");
  if (is_due()) {
    real(descriptor, data, size / 2);
    kill(getpid(), SIGKILL);
  }
  return real(descriptor, data, size);
}

int fsync(int descriptor) {
  static const auto real = next<int (*)(int)>("fsync");
  die_if_due();
  return real(descriptor);
}

int rename(const char* from, const char* to) noexcept {
  static const auto real = next<int (*)(const char*, const char*)>("rename");
  die_if_due();
  return real(from, to);
}

int symlink(const char* to, const char* path) noexcept {
  static const auto real = next<int (*)(const char*, const char*)>("symlink");
  die_if_due();
  return real(to, path);
}

int mkdir(const char* path, mode_t mode) noexcept {
  static const auto real = next<int (*)(const char*, mode_t)>("mkdir");
  die_if_due();
  return real(path, mode);
}

int unlinkat(int folder, const char* path, int flags) noexcept {
  static const auto real = next<int (*)(int, const char*, int)>("unlinkat");
  die_if_due();
  return real(folder, path, flags);
}

}  // extern "C"
