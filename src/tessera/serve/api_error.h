// Error responses: an HTTP status and
//   {"error": {"message", "type", "param", "code"}}
#pragma once

#include <exception>
#include <stdexcept>
#include <string>

#include "tessera/spec/json.h"

namespace tessera::serve {

using spec::Json;

class ApiError : public std::runtime_error {
 public:
  /// `code` is one word for programs, `param` the invalid field ("" = none).
  ApiError(int status,
           std::string code,
           const std::string& message,
           std::string param = {},
           int retry_after = 0)
      : std::runtime_error(message),
        status_(status),
        retry_after_(retry_after),
        code_(std::move(code)),
        param_(std::move(param)) {}

  /// 405 with the allowed methods, "GET, POST".
  static ApiError wrong_method(const std::string& methods) {
    ApiError error(405, "method_not_allowed", "expected " + methods);
    error.allowed_ = methods;
    return error;
  }

  int status() const { return status_; }
  int retry_after() const { return retry_after_; }  // seconds; 0 = no such header
  const std::string& code() const { return code_; }
  const std::string& param() const { return param_; }
  const std::string& allowed() const { return allowed_; }  // methods; "" = no such header
  Json body() const;

 private:
  int status_, retry_after_;
  std::string code_, param_, allowed_;
};

/// Throws 400 for a field of a request body.
[[noreturn]] void refuse(const std::string& param,
                         const std::string& message,
                         const std::string& code = "invalid_value");

/// The response for an exception: 400 for an Error that the request caused, otherwise 500 without
/// details.
ApiError api_error_of(const std::exception_ptr& error);

/// One line for the log.
std::string description_of(const std::exception_ptr& error);
/// Writes it to stderr, if possible.
void complain(const std::exception_ptr& error) noexcept;

/// "OK", "Bad Request", ... for the statuses in use.
const char* reason_of(int status);

}  // namespace tessera::serve
