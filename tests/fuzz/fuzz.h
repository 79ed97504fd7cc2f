// What every fuzz target checks: a reader refuses with one Error(file) line or returns something
// whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <span>
#include <string_view>

#include "tessera/base/error.h"

namespace tessera::fuzz {

inline void check(bool holds, const char* promise) {
  if (holds) return;
  std::fprintf(stderr, "broken promise: %s\n", promise);
  std::abort();
}

/// Runs `read` on the input; any exception but Error(file) is a finding, and so are two lines.
inline int run(const std::function<void()>& read) {
  try {
    read();
  } catch (const Error& error) {
    const std::string_view what = error.what();
    if (error.kind() != ErrorKind::file) std::fprintf(stderr, "%s\n", error.what());
    check(error.kind() == ErrorKind::file, "a bad file is an Error(file)");
    check(what.starts_with("[") && what.find('\n') == std::string_view::npos,
          "an error is one line");
  }
  return 0;
}

inline std::span<const std::byte> bytes_of(const uint8_t* data, size_t size) {
  return std::as_bytes(std::span(data, size));
}

}  // namespace tessera::fuzz
