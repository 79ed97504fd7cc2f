// The exception type of the library, also for programs that link it: no other header is needed.
// Every message has the form
//   [where] what is wrong: what was found; what was expected, or the remedy
// and a kind, from which the command line derives its exit code.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace tessera {

enum class ErrorKind {
  usage,      // the caller asked for something that does not exist or does not fit (exit 2)
  spec,       // an architecture or recipe is invalid (exit 2)
  file,       // a file is missing, malformed or does not match (exit 1)
  input,      // data given at run time is invalid: prompt, tensor, text (exit 1)
  resource,   // memory, disk, device or lock not available (exit 1)
  cancelled,  // stopped on request (exit 130 or 143)
  internal,   // a bug in this library (exit 1)
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, std::string_view where, std::string_view what)
      : std::runtime_error(std::string("[").append(where).append("] ").append(what)), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

}  // namespace tessera
