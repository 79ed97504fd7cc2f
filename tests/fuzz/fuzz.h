// What every fuzz target shares. A target is one function over an input:
//
//   TESSERA_FUZZ_TARGET(npy) {
//     fuzz::run([&] { fuzz::check_tensor(format::read_npy(input, "fuzz"), input); });
//   }
//
// Built by itself it is a libFuzzer program; replay_test.cpp runs all of them on their corpora.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/error.h"

namespace tessera::fuzz {

using Input = std::span<const std::byte>;

/// A finding. Nothing catches it but who looks for findings.
class BrokenPromise : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

inline void check(bool holds, const std::string& promise) {
  if (!holds) throw BrokenPromise("broken promise: " + promise);
}

/// How often run() has seen something read whole.
inline int64_t& times_read() {
  static int64_t times = 0;
  return times;
}

/// Runs `read`, which returns or throws an Error of one of these kinds. Any other Error is a
/// finding, an internal one above all, and so is any other exception.
inline void run(const std::function<void()>& read,
                std::initializer_list<ErrorKind> kinds = {ErrorKind::file}) {
  try {
    read();
    ++times_read();
  } catch (const Error& error) {
    const std::string what = error.what();
    check(error.kind() != ErrorKind::internal, "no input shows a bug: " + what);
    check(std::find(kinds.begin(), kinds.end(), error.kind()) != kinds.end(),
          "a bad input has a kind that says so: " + what);
  }
}

inline std::string_view text_of(Input input) {
  return {reinterpret_cast<const char*>(input.data()), input.size()};
}

/// Inputs of several files: N parts with "\n%%\n" between them; those that are not there are empty.
template <size_t N>
std::array<std::string_view, N> parts_of(Input input) {
  constexpr std::string_view kBetween = "\n%%\n";
  std::array<std::string_view, N> parts;
  std::string_view rest = text_of(input);
  for (size_t i = 0; i < N; ++i) {
    const size_t end = i + 1 == N ? rest.size() : std::min(rest.find(kBetween), rest.size());
    parts[i] = rest.substr(0, end);
    rest.remove_prefix(std::min(end + kBetween.size(), rest.size()));
  }
  return parts;
}

struct Target {
  const char* name;
  void (*run)(Input input);
};

/// Those linked into this program.
inline std::vector<Target>& targets() {
  static std::vector<Target> all;
  return all;
}

inline bool list(Target target) {
  targets().push_back(target);
  return true;
}

}  // namespace tessera::fuzz

#ifdef TESSERA_FUZZ_REPLAY
#define TESSERA_FUZZ_TARGET(name)                                                               \
  static void fuzz_##name(tessera::fuzz::Input input);                                          \
  [[maybe_unused]] static const bool listed_##name = tessera::fuzz::list({#name, fuzz_##name}); \
  static void fuzz_##name([[maybe_unused]] tessera::fuzz::Input input)
#else
#define TESSERA_FUZZ_TARGET(name)                                           \
  static void fuzz_##name(tessera::fuzz::Input input);                      \
  extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) { \
    fuzz_##name(std::as_bytes(std::span(data, size)));                      \
    return 0;                                                               \
  }                                                                         \
  static void fuzz_##name([[maybe_unused]] tessera::fuzz::Input input)
#endif
