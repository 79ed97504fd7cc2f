#include "tessera/serve/api_error.h"

#include <array>
#include <new>

#include "tessera/base/error.h"

namespace tessera::serve {
namespace {

struct Status {
  int code;
  const char* reason;
  const char* type;  // of the error
};

constexpr std::array kStatuses = {
    Status{200, "OK", ""},
    Status{204, "No Content", ""},
    Status{400, "Bad Request", "invalid_request_error"},
    Status{401, "Unauthorized", "authentication_error"},
    Status{403, "Forbidden", "permission_error"},
    Status{404, "Not Found", "invalid_request_error"},
    Status{405, "Method Not Allowed", "invalid_request_error"},
    Status{408, "Request Timeout", "timeout_error"},
    Status{409, "Conflict", "invalid_request_error"},
    Status{413, "Payload Too Large", "invalid_request_error"},
    Status{414, "URI Too Long", "invalid_request_error"},
    Status{415, "Unsupported Media Type", "invalid_request_error"},
    Status{417, "Expectation Failed", "invalid_request_error"},
    Status{429, "Too Many Requests", "rate_limit_error"},
    Status{431, "Request Header Fields Too Large", "invalid_request_error"},
    Status{500, "Internal Server Error", "server_error"},
    Status{501, "Not Implemented", "not_supported_error"},
    Status{503, "Service Unavailable", "unavailable_error"},
    Status{504, "Gateway Timeout", "timeout_error"},
    Status{505, "HTTP Version Not Supported", "invalid_request_error"},
};

const Status& status_of(int code) {
  for (const Status& status : kStatuses)
    if (status.code == code) return status;
  return status_of(500);
}

/// Without the "[where] " prefix, which means nothing to a client.
std::string message_of(const Error& error) {
  const std::string what = error.what();
  const size_t end = what.find("] ");
  return what.starts_with('[') && end != std::string::npos ? what.substr(end + 2) : what;
}

}  // namespace

Json ApiError::body() const {
  const auto or_null = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
  return {{"error",
           {{"message", what()},
            {"type", status_of(status_).type},
            {"param", or_null(param_)},
            {"code", or_null(code_)}}}};
}

void refuse(const std::string& param, const std::string& message, const std::string& code) {
  throw ApiError(400, code, message, param);
}

ApiError api_error_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const ApiError& known) {
    return known;
  } catch (const Error& known) {
    if (known.kind() == ErrorKind::input || known.kind() == ErrorKind::usage)
      return {400, "invalid_value", message_of(known)};
    if (known.kind() == ErrorKind::resource)
      return {503, "no_resources", "the server lacks memory or the like for this; try again later"};
  } catch (const std::bad_alloc&) {
    return {503, "no_resources", "the server lacks memory for this; ask for less, or later"};
  } catch (const std::exception&) {
  }
  return {500, "internal_error", "the server failed; its log says why"};
}

std::string description_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    // what follows the first line is a backtrace
    const std::string what = known.what();
    return what.substr(0, what.find('\n'));
  }
}

void complain(const std::exception_ptr& error) noexcept {
  try {
    fmt::print(stderr, "tessera: {}\n", description_of(error));
  } catch (...) {
    // an error that cannot be sent is dropped
  }
}

const char* reason_of(int status) {
  return status_of(status).reason;
}

}  // namespace tessera::serve
