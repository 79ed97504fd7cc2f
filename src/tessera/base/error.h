// The one exception type of the library. Every message reads
//   [where] what is wrong: what was found; what was expected, or the remedy
// and carries a kind, from which the command line derives its exit code.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace tessera {

enum class ErrorKind {
  usage,      // the caller asked for something that does not exist or does not fit (exit 2)
  spec,       // an architecture or recipe is invalid (exit 2)
  file,       // a file is missing, malformed or does not match (exit 1)
  input,      // data given at run time is invalid: prompt, tensor, text (exit 1)
  resource,   // memory, disk, device or lock not available (exit 1)
  cancelled,  // stopped on request (exit 130 or 143)
  internal,   // a broken promise of this library (exit 1)
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, std::string_view where, std::string_view what)
      : std::runtime_error(fmt::format("[{}] {}", where, what)), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

/// fail(ErrorKind::spec, "rope", "n_heads = {} does not divide d_model = {}", 12, 1000)
template <class... Args>
[[noreturn]] void fail(ErrorKind kind,
                       std::string_view where,
                       fmt::format_string<Args...> format,
                       Args&&... args) {
  throw Error(kind, where, fmt::format(format, std::forward<Args>(args)...));
}

/// For promises inside the library; a failure is a bug in tessera, never in the input.
template <class... Args>
void require(bool holds,
             std::string_view where,
             fmt::format_string<Args...> format,
             Args&&... args) {
  if (!holds) fail(ErrorKind::internal, where, format, std::forward<Args>(args)...);
}

}  // namespace tessera
