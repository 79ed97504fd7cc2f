// What a client is told when it is not served: a status, and
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
  /// `code` is one word for programs, `param` the field that is wrong ("" = none of them).
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

  /// 405: the methods that there are instead, "GET, POST".
  static ApiError wrong_method(const std::string& methods) {
    ApiError error(405, "method_not_allowed", "expected " + methods);
    error.allowed_ = methods;
    return error;
  }

  int status() const { return status_; }
  int retry_after() const { return retry_after_; }  // seconds; 0 = not said
  const std::string& code() const { return code_; }
  const std::string& param() const { return param_; }
  const std::string& allowed() const { return allowed_; }  // methods; "" = not said
  Json body() const;

 private:
  int status_, retry_after_;
  std::string code_, param_, allowed_;
};

/// 400, for a field of a request's body.
[[noreturn]] void refuse(const std::string& param,
                         const std::string& message,
                         const std::string& code = "invalid_value");

/// What a client is told of an exception: an Error that is the request's fault as 400, all others
/// as 500 without a word of what happened.
ApiError api_error_of(const std::exception_ptr& error);

/// One line for the log.
std::string description_of(const std::exception_ptr& error);
/// Writes it there, where that can be done.
void complain(const std::exception_ptr& error) noexcept;

/// "OK", "Bad Request", ... of the statuses used here.
const char* reason_of(int status);

}  // namespace tessera::serve
