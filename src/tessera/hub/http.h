// GET over HTTP and HTTPS by libcurl, which is opened (dlopen) when the first HttpClient is made: a
// program that never makes one never loads it.
//
// Certificates are verified, by the system's authorities or those of SSL_CERT_FILE. Proxies are
// those of the environment (https_proxy, ...). Redirects are followed here: at most five, to
// HTTP(S), never from HTTPS to HTTP; the token goes to the origin (scheme, host, port) of the
// endpoint alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "tessera/base/cancel.h"

namespace tessera::hub {

struct HttpSettings {
  std::string endpoint;  // whose origin gets the token
  std::string token;     // "" = none
  double connect_seconds = 30;
  double stall_seconds = 30;  // without a byte, after which a transfer counts as cut
  const CancelToken* cancel = nullptr;
};

struct HttpRequest {
  std::string url;
  uint64_t begin = 0;  // first byte that is asked for; above 0 by a Range
  /// Takes the body of an answer 200 or 206, piece by piece; false ends the transfer. Without it
  /// the body is collected.
  std::function<bool(std::span<const std::byte> bytes)> sink = {};
  /// Is asked once before the first byte of such a body; false ends the transfer.
  std::function<bool(const struct HttpAnswer& answer)> accept = {};
  size_t most_bytes = size_t{64} << 20;  // of a body that is collected
};

struct HttpAnswer {
  long status = 0;                             // 0: there was no answer
  std::map<std::string, std::string> headers;  // of the last answer, names in lower case
  std::string body;                            // of errors the beginning
  /// Why the transfer did not end as it should; "" where it did.
  std::string error;
  /// Whether such an error may pass: a connection that is refused, cut or silent.
  bool may_pass = false;
  bool unreachable = false;  // no connection was made

  /// "" where there is none.
  std::string header(const std::string& name) const {
    const auto found = headers.find(name);
    return found == headers.end() ? "" : found->second;
  }
};

/// One connection at a time; for one thread.
class HttpClient {
 public:
  /// Throws Error(resource) where libcurl is not installed, Error(usage) where the endpoint is no
  /// URL, or a token would go unencrypted to another machine.
  explicit HttpClient(HttpSettings settings);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  /// Does not throw for what the server does.
  HttpAnswer get(const HttpRequest& request);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Bytes that are no letters, digits, '-', '_', '.', '~' (and '/' with `slashes`) as %XX.
std::string url_encoded(std::string_view text, bool slashes);

}  // namespace tessera::hub
